"""DescribeTopicPartitionsRequest and DescribeTopicPartitionsResponse (API key 75)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32


class TopicRequest(Struct):
    name: str = field("0+")


class Cursor(Struct):
    topic_name: str = field("0+")
    partition_index: int32 = field("0+")


class DescribeTopicPartitionsRequest(Message, kind="request", api_key=75, versions="0", flexible="0+"):
    topics: list[TopicRequest] = field("0+")
    response_partition_limit: int32 = field("0+", default=2000)
    cursor: Cursor | None = field("0+", nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int16 = field("0+")
    partition_index: int32 = field("0+")
    leader_id: int32 = field("0+")
    leader_epoch: int32 = field("0+", default=-1)
    replica_nodes: list[int32] = field("0+")
    isr_nodes: list[int32] = field("0+")
    eligible_leader_replicas: list[int32] | None = field("0+", nullable="0+", default=None)
    last_known_elr: list[int32] | None = field("0+", nullable="0+", default=None)
    offline_replicas: list[int32] = field("0+")


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int16 = field("0+")
    name: str | None = field("0+", nullable="0+")
    topic_id: Uuid = field("0+")
    is_internal: bool = field("0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = field("0+")
    topic_authorized_operations: int32 = field("0+", default=-2147483648)


class DescribeTopicPartitionsResponse(Message, kind="response", api_key=75, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = field("0+")
    next_cursor: Cursor | None = field("0+", nullable="0+", default=None)
