"""DeleteRecordsRequest and DeleteRecordsResponse (API key 21)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class DeleteRecordsPartition(Struct):
    partition_index: int32 = field("0+")
    offset: int64 = field("0+")


class DeleteRecordsTopic(Struct):
    name: str = field("0+")
    partitions: list[DeleteRecordsPartition] = field("0+")


class DeleteRecordsRequest(Message, kind="request", api_key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = field("0+")
    timeout_ms: int32 = field("0+")


class DeleteRecordsPartitionResult(Struct):
    partition_index: int32 = field("0+")
    low_watermark: int64 = field("0+")
    error_code: int16 = field("0+")


class DeleteRecordsTopicResult(Struct):
    name: str = field("0+")
    partitions: list[DeleteRecordsPartitionResult] = field("0+")


class DeleteRecordsResponse(Message, kind="response", api_key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    topics: list[DeleteRecordsTopicResult] = field("0+")
