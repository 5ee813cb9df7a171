"""ListPartitionReassignmentsRequest and ListPartitionReassignmentsResponse (API key 46)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class ListPartitionReassignmentsTopics(Struct):
    name: str = field("0+")
    partition_indexes: list[int32] = field("0+")


class ListPartitionReassignmentsRequest(Message, kind="request", api_key=46, versions="0", flexible="0+"):
    timeout_ms: int32 = field("0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field("0+", nullable="0+", default=None)


class OngoingPartitionReassignment(Struct):
    partition_index: int32 = field("0+")
    replicas: list[int32] = field("0+")
    adding_replicas: list[int32] = field("0+")
    removing_replicas: list[int32] = field("0+")


class OngoingTopicReassignment(Struct):
    name: str = field("0+")
    partitions: list[OngoingPartitionReassignment] = field("0+")


class ListPartitionReassignmentsResponse(Message, kind="response", api_key=46, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = field("0+")
