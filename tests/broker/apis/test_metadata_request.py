"""Metadata: recorded cases of Apache Kafka 3.9.2."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.broker.apis import metadata
from pybroker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pybroker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pybroker.protocol.uuids import ZERO_UUID
from tests.broker.room import Room


async def create(room: Room, *names: str, partitions: int = 1) -> None:
    wanted = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    await room.call(CreateTopicsRequest(topics=wanted, timeout_ms=5000), 7)


async def ask(room: Room, version: int, topics: list[dict[str, Any]] | None, **fields: Any) -> Any:
    named = None if topics is None else [MetadataRequestTopic(**{"name": None} | each) for each in topics]
    return await room.call(MetadataRequest(topics=named, **fields), version)


def codes(response: Any) -> list[tuple[str | None, int, int]]:
    return [(each.name, each.error_code, len(each.partitions)) for each in response.topics]


@pytest.mark.parametrize("version", range(14))
async def test_one_topic_in_every_version(room: Room, version: int) -> None:
    await create(room, "p", partitions=2)
    response = await ask(room, version, [{"name": "p"}, {"name": "p"}])
    assert [(each.node_id, each.host, each.port) for each in response.brokers] == [(5, "127.0.0.1", 9092)]
    assert codes(response) == [("p", 0, 2)]
    partition = response.topics[0].partitions[1]
    assert (partition.partition_index, partition.leader_id, partition.replica_nodes) == (1, 5, [5])
    assert response.topics[0].topic_id == (room.cache.topic_id("p") if version >= 10 else ZERO_UUID)
    if version >= 2:
        assert (response.controller_id, response.cluster_id) == (5, room.cache.cluster_id)


@pytest.mark.parametrize("version", [0, 1, 4, 8, 12, 13])
async def test_auto_creation(room: Room, version: int) -> None:
    response = await ask(room, version, [{"name": "auto-a"}, {"name": "a b"}, {"name": "a" * 250}])
    assert codes(response) == [("auto-a", 5, 0), ("a b", 17, 0), ("a" * 250, 17, 0)]
    assert await room.cache.wait_until(["auto-a"], lambda: "auto-a" in room.cache, 10)
    assert codes(await ask(room, version, [{"name": "auto-a"}])) == [("auto-a", 0, 1)]


@pytest.mark.parametrize("topics", [None, [{"name": "late"}]])
async def test_a_broker_that_starts_waits_for_the_controllers_word(
    room: Room, topics: list[dict[str, Any]] | None
) -> None:
    """It may not say that there are no topics, nor that it does not know this one."""
    room.cache.complete.clear()
    asked = asyncio.create_task(ask(room, 12, topics, allow_auto_topic_creation=False))
    await create(room, "late")
    assert not asked.done()
    room.cache.complete.set()
    assert codes(await asyncio.wait_for(asked, 10)) == [("late", 0, 1)]


async def test_without_auto_creation(room: Room) -> None:
    response = await ask(room, 4, [{"name": "auto-b"}, {"name": "a b"}], allow_auto_topic_creation=False)
    assert codes(response) == [("auto-b", 3, 0), ("a b", 17, 0)]
    assert await room.services.store.children("/brokers/topics") == []


async def test_known_topics_come_first(room: Room) -> None:
    await create(room, "sw")
    response = await ask(room, 1, [{"name": "sw-none"}, {"name": "sw"}])
    assert codes(response) == [("sw", 0, 1), ("sw-none", 5, 0)]


async def test_what_an_empty_list_means(room: Room) -> None:
    await create(room, "a", "b")
    assert len((await ask(room, 0, [])).topics) == 2
    assert len((await ask(room, 1, [])).topics) == 0
    assert len((await ask(room, 1, None)).topics) == 2


async def test_by_id(room: Room) -> None:
    await create(room, "p")
    topic_id = room.cache.topic_id("p")
    assert codes(await ask(room, 12, [{"topic_id": topic_id}])) == [("p", 0, 1)]
    response = await ask(room, 12, [{"topic_id": b"\1" * 16}])
    assert codes(response) == [(None, 100, 0)]
    assert response.topics[0].topic_id == b"\1" * 16
    assert codes(await ask(room, 12, [{"topic_id": b"\1" * 16, "name": "p"}])) == [(None, 100, 0)]


async def test_what_refuses_the_whole_request(room: Room) -> None:
    await create(room, "p")
    response = await ask(room, 12, [{}])
    assert codes(response) == [("", -1, 0)]
    assert (response.brokers, response.cluster_id, response.controller_id) == ([], None, -1)
    response = await ask(room, 10, [{"topic_id": b"\1" * 16, "name": "p"}])
    assert codes(response) == [("p", 42, 0)]
    assert response.topics[0].topic_id == b"\1" * 16
    assert response.brokers == []


async def test_authorized_operations(room: Room) -> None:
    await create(room, "p")
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    response = await ask(room, 8, [{"name": "p"}, {"name": "a b"}], **asked)
    assert response.cluster_authorized_operations == 8096
    assert [each.topic_authorized_operations for each in response.topics] == [3576, 3576]
    response = await ask(room, 8, [{"name": "p"}])
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (
        -2147483648,
        -2147483648,
    )
    room.denied = {("DESCRIBE", "CLUSTER"), ("WRITE", "TOPIC")}
    response = await ask(room, 8, [{"name": "p"}], **asked)
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (0, 3576 - 16)


async def test_without_rights(room: Room) -> None:
    await create(room, "p")
    room.denied = {("DESCRIBE", "TOPIC")}
    assert codes(await ask(room, 12, [{"name": "p"}, {"name": "nope"}])) == [("p", 29, 0), ("nope", 29, 0)]
    assert codes(await ask(room, 12, [{"topic_id": room.cache.topic_id("p")}])) == [(None, 100, 0)]
    assert codes(await ask(room, 12, None)) == []
    room.denied = {("CREATE", "CLUSTER"), ("CREATE", "TOPIC")}
    assert codes(await ask(room, 12, [{"name": "p"}, {"name": "nope"}])) == [("p", 0, 1), ("nope", 29, 0)]


@pytest.mark.parametrize("version", [1, 9, 12])
async def test_thousands_of_partitions(room: Room, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(room, *(f"t{n}" for n in range(50)), partitions=2)
    await create(room, "large", partitions=1500)
    small = await ask(room, version, None)
    monkeypatch.setattr(metadata, "LARGE", 10**9)
    for topic in room.cache.topics.values():
        topic.pieces.clear()
    assert codes(small) == codes(await ask(room, version, None))
    assert len(small.topics) == 51
    assert codes(await ask(room, version, [{"name": "large"}])) == [("large", 0, 1500)]
