"""ReadShareGroupStateRequest and ReadShareGroupStateResponse (API key 84)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int16, int32, int64


class PartitionData(Struct):
    partition: int32 = field("0+")
    leader_epoch: int32 = field("0+")


class ReadStateData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionData] = field("0+")


class ReadShareGroupStateRequest(Message, kind="request", api_key=84, versions="0", flexible="0+"):
    group_id: str = field("0+")
    topics: list[ReadStateData] = field("0+")


class StateBatch(Struct):
    first_offset: int64 = field("0+")
    last_offset: int64 = field("0+")
    delivery_state: int8 = field("0+")
    delivery_count: int16 = field("0+")


class PartitionResult(Struct):
    partition: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    state_epoch: int32 = field("0+")
    start_offset: int64 = field("0+")
    state_batches: list[StateBatch] = field("0+")


class ReadStateResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionResult] = field("0+")


class ReadShareGroupStateResponse(Message, kind="response", api_key=84, versions="0", flexible="0+"):
    results: list[ReadStateResult] = field("0+")
