"""ReadShareGroupStateSummaryRequest and ReadShareGroupStateSummaryResponse (API key 87)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32, int64


class PartitionData(Struct):
    partition: int32 = field("0+")
    leader_epoch: int32 = field("0+")


class ReadStateSummaryData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionData] = field("0+")


class ReadShareGroupStateSummaryRequest(Message, kind="request", api_key=87, versions="0-1", flexible="0+"):
    group_id: str = field("0+")
    topics: list[ReadStateSummaryData] = field("0+")


class PartitionResult(Struct):
    partition: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    state_epoch: int32 = field("0+")
    leader_epoch: int32 = field("0+")
    start_offset: int64 = field("0+")
    delivery_complete_count: int32 = field("1+", default=-1)


class ReadStateSummaryResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionResult] = field("0+")


class ReadShareGroupStateSummaryResponse(Message, kind="response", api_key=87, versions="0-1", flexible="0+"):
    results: list[ReadStateSummaryResult] = field("0+")
