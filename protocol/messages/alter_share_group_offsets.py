"""AlterShareGroupOffsetsRequest and AlterShareGroupOffsetsResponse (API key 91)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32, int64


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int32 = field("0+")
    start_offset: int64 = field("0+")


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field("0+")
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field("0+")


class AlterShareGroupOffsetsRequest(Message, kind="request", api_key=91, versions="0", flexible="0+"):
    group_id: str = field("0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = field("0+")


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field("0+")
    topic_id: Uuid = field("0+")
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field("0+")


class AlterShareGroupOffsetsResponse(Message, kind="response", api_key=91, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = field("0+")
