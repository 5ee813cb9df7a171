"""AlterPartitionReassignmentsRequest and AlterPartitionReassignmentsResponse (API key 45)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class ReassignablePartition(Struct):
    partition_index: int32 = field("0+")
    replicas: list[int32] | None = field("0+", nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = field("0+")
    partitions: list[ReassignablePartition] = field("0+")


class AlterPartitionReassignmentsRequest(Message, kind="request", api_key=45, versions="0-1", flexible="0+"):
    timeout_ms: int32 = field("0+", default=60000)
    allow_replication_factor_change: bool = field("1+", default=True)
    topics: list[ReassignableTopic] = field("0+")


class ReassignablePartitionResponse(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")


class ReassignableTopicResponse(Struct):
    name: str = field("0+")
    partitions: list[ReassignablePartitionResponse] = field("0+")


class AlterPartitionReassignmentsResponse(Message, kind="response", api_key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    allow_replication_factor_change: bool = field("1+", default=True)
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = field("0+")
