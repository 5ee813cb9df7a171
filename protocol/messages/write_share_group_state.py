"""WriteShareGroupStateRequest and WriteShareGroupStateResponse (API key 85)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int16, int32, int64


class StateBatch(Struct):
    first_offset: int64 = field("0+")
    last_offset: int64 = field("0+")
    delivery_state: int8 = field("0+")
    delivery_count: int16 = field("0+")


class PartitionData(Struct):
    partition: int32 = field("0+")
    state_epoch: int32 = field("0+")
    leader_epoch: int32 = field("0+")
    start_offset: int64 = field("0+")
    delivery_complete_count: int32 = field("1+", default=-1)
    state_batches: list[StateBatch] = field("0+")


class WriteStateData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionData] = field("0+")


class WriteShareGroupStateRequest(Message, kind="request", api_key=85, versions="0-1", flexible="0+"):
    group_id: str = field("0+")
    topics: list[WriteStateData] = field("0+")


class PartitionResult(Struct):
    partition: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)


class WriteStateResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionResult] = field("0+")


class WriteShareGroupStateResponse(Message, kind="response", api_key=85, versions="0-1", flexible="0+"):
    results: list[WriteStateResult] = field("0+")
