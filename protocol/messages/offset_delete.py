"""OffsetDeleteRequest and OffsetDeleteResponse (API key 47)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class OffsetDeleteRequestPartition(Struct):
    partition_index: int32 = field("0+")


class OffsetDeleteRequestTopic(Struct):
    name: str = field("0+")
    partitions: list[OffsetDeleteRequestPartition] = field("0+")


class OffsetDeleteRequest(Message, kind="request", api_key=47, versions="0"):
    group_id: str = field("0+")
    topics: list[OffsetDeleteRequestTopic] = field("0+")


class OffsetDeleteResponsePartition(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")


class OffsetDeleteResponseTopic(Struct):
    name: str = field("0+")
    partitions: list[OffsetDeleteResponsePartition] = field("0+")


class OffsetDeleteResponse(Message, kind="response", api_key=47, versions="0"):
    error_code: int16 = field("0+")
    throttle_time_ms: int32 = field("0+")
    topics: list[OffsetDeleteResponseTopic] = field("0+")
