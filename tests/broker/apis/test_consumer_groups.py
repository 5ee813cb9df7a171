"""ConsumerGroupHeartbeat and ConsumerGroupDescribe where the consumer protocol is off, and where rights are missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.broker.apis import consumer_group_describe, consumer_group_heartbeat
from pybroker.coordinator.service import GroupCoordinator
from pybroker.coordinator.settings import GroupSettings
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from pybroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pybroker.protocol.timer import Timer


class Context:
    """A request's context; everything but `denied` is allowed."""

    api_version = 1
    client_id = "c"
    client_address = "127.0.0.1"

    def __init__(self, groups: Any, denied: tuple[str, str, str] | None = None) -> None:
        self.services = SimpleNamespace(groups=groups)
        self.denied = denied

    def authorize(self, operation: str, resource_type: str, name: str) -> bool:
        return (operation, resource_type, name) != self.denied


@pytest.fixture
def off() -> GroupCoordinator:
    clock = ManualClock()
    logs: Any = None
    return GroupCoordinator(logs, lambda: 1, GroupSettings(), clock, Timer(clock))


def heartbeat(context: Any, **fields: Any) -> Any:
    return consumer_group_heartbeat.handle(context, ConsumerGroupHeartbeatRequest(group_id="g", **fields))


def describe(context: Any) -> DescribedGroup:
    request = ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    return consumer_group_describe.handle(context, request).groups[0]


def test_unsupported_where_the_protocol_is_off(off: GroupCoordinator) -> None:
    with pytest.raises(KafkaError) as refused:
        heartbeat(Context(off))
    assert refused.value.code == Errors.UNSUPPORTED_VERSION
    assert describe(Context(off)).error_code == Errors.UNSUPPORTED_VERSION


def test_rights_to_heartbeat(off: GroupCoordinator) -> None:
    with pytest.raises(KafkaError) as refused:
        heartbeat(Context(off, ("READ", "GROUP", "g")))
    assert refused.value.code == Errors.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(KafkaError) as refused:
        heartbeat(Context(off, ("DESCRIBE", "TOPIC", "t")), subscribed_topic_names=["a", "t"])
    assert refused.value.code == Errors.TOPIC_AUTHORIZATION_FAILED


def test_rights_to_describe(off: GroupCoordinator) -> None:
    part = TopicPartitions(topic_id=bytes(16), topic_name="t", partitions=[0])
    member = Member(member_id="m", assignment=Assignment(topic_partitions=[part]))
    groups = SimpleNamespace(consumer_describe=lambda group_id: DescribedGroup(group_id=group_id, members=[member]))
    assert describe(Context(groups)).members == [member]
    assert describe(Context(groups, ("DESCRIBE", "GROUP", "g"))).error_code == Errors.GROUP_AUTHORIZATION_FAILED
    hidden = describe(Context(groups, ("DESCRIBE", "TOPIC", "t")))
    assert (hidden.error_code, hidden.members) == (Errors.TOPIC_AUTHORIZATION_FAILED, [])
