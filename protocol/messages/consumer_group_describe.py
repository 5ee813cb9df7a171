"""ConsumerGroupDescribeRequest and ConsumerGroupDescribeResponse (API key 69)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int16, int32


class ConsumerGroupDescribeRequest(Message, kind="request", api_key=69, versions="0-1", flexible="0+"):
    group_ids: list[str] = field("0+")
    include_authorized_operations: bool = field("0+")


class TopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    topic_name: str = field("0+")
    partitions: list[int32] = field("0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field("0+")


class Member(Struct):
    member_id: str = field("0+")
    instance_id: str | None = field("0+", nullable="0+", default=None)
    rack_id: str | None = field("0+", nullable="0+", default=None)
    member_epoch: int32 = field("0+")
    client_id: str = field("0+")
    client_host: str = field("0+")
    subscribed_topic_names: list[str] = field("0+")
    subscribed_topic_regex: str | None = field("0+", nullable="0+", default=None)
    assignment: Assignment = field("0+")
    target_assignment: Assignment = field("0+")
    member_type: int8 = field("1+", default=-1)


class DescribedGroup(Struct):
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    group_id: str = field("0+")
    group_state: str = field("0+")
    group_epoch: int32 = field("0+")
    assignment_epoch: int32 = field("0+")
    assignor_name: str = field("0+")
    members: list[Member] = field("0+")
    authorized_operations: int32 = field("0+", default=-2147483648)


class ConsumerGroupDescribeResponse(Message, kind="response", api_key=69, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    groups: list[DescribedGroup] = field("0+")
