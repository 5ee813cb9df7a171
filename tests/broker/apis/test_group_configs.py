"""Settings of consumer groups through the admin APIs, as Kafka 4.3.1 answers: set, told, listed, in effect at once."""

from __future__ import annotations

from pybroker.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.broker.apis.test_config_requests import APPEND, DELETE, SET, change, describe, replace, value_of
from tests.broker.room import Room

GROUP = 32
SESSION = "consumer.session.timeout.ms"


async def test_set_and_deleted(room: Room) -> None:
    group_id = "a group/with a slash"
    assert await value_of(room, GROUP, group_id, SESSION) == ("45000", 5)
    assert await change(room, GROUP, group_id, (SESSION, SET, "50000")) == (0, None)
    assert await value_of(room, GROUP, group_id, SESSION) == ("50000", 8)
    listed = await room.call(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    assert [(each.resource_name, each.resource_type) for each in listed.config_resources] == [(group_id, GROUP)]
    assert await change(room, GROUP, group_id, (SESSION, DELETE, None)) == (0, None)
    assert await value_of(room, GROUP, group_id, SESSION) == ("45000", 5)


async def test_replaced(room: Room) -> None:
    assert await replace(room, GROUP, "g", (SESSION, "50000")) == (0, None)
    assert await replace(room, GROUP, "g", ("consumer.heartbeat.interval.ms", "7000")) == (0, None)
    code, _, settings = await describe(room, GROUP, "g")
    assert (code, [(name, value) for name, value, source, _ in settings if source == 8]) == (
        0, [("consumer.heartbeat.interval.ms", "7000")]
    )  # fmt: skip


async def test_refused(room: Room) -> None:
    assert await change(room, GROUP, "", (SESSION, SET, "50000")) == (42, "Default group resources are not allowed.")
    assert await change(room, GROUP, "g", ("bogus", SET, "1")) == (40, "Unknown group config name: bogus")
    assert await change(room, GROUP, "g", (SESSION, APPEND, "1")) == (
        40, f"Can't APPEND to key {SESSION} because its type is not LIST."
    )  # fmt: skip
    assert await change(room, GROUP, "g", (SESSION, SET, "5")) == (
        40, f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"
    )  # fmt: skip
    assert (await describe(room, GROUP, ""))[:2] == (42, "Group name must not be empty")
