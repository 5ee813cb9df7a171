"""ListOffsetsRequest and ListOffsetsResponse (API key 2)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32, int64


class ListOffsetsPartition(Struct):
    partition_index: int32 = field("0+")
    current_leader_epoch: int32 = field("4+", default=-1)
    timestamp: int64 = field("0+")
    max_num_offsets: int32 = field("0", default=1)


class ListOffsetsTopic(Struct):
    name: str = field("0+")
    partitions: list[ListOffsetsPartition] = field("0+")


class ListOffsetsRequest(Message, kind="request", api_key=2, versions="0-11", flexible="6+"):
    replica_id: int32 = field("0+")
    isolation_level: int8 = field("2+")
    topics: list[ListOffsetsTopic] = field("0+")
    timeout_ms: int32 = field("10+")


class ListOffsetsPartitionResponse(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")
    old_style_offsets: list[int64] = field("0")
    timestamp: int64 = field("1+", default=-1)
    offset: int64 = field("1+", default=-1)
    leader_epoch: int32 = field("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = field("0+")
    partitions: list[ListOffsetsPartitionResponse] = field("0+")


class ListOffsetsResponse(Message, kind="response", api_key=2, versions="0-11", flexible="6+"):
    throttle_time_ms: int32 = field("2+")
    topics: list[ListOffsetsTopicResponse] = field("0+")
