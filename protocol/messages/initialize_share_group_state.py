"""InitializeShareGroupStateRequest and InitializeShareGroupStateResponse (API key 83)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32, int64


class PartitionData(Struct):
    partition: int32 = field("0+")
    state_epoch: int32 = field("0+")
    start_offset: int64 = field("0+")


class InitializeStateData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionData] = field("0+")


class InitializeShareGroupStateRequest(Message, kind="request", api_key=83, versions="0", flexible="0+"):
    group_id: str = field("0+")
    topics: list[InitializeStateData] = field("0+")


class PartitionResult(Struct):
    partition: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)


class InitializeStateResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionResult] = field("0+")


class InitializeShareGroupStateResponse(Message, kind="response", api_key=83, versions="0", flexible="0+"):
    results: list[InitializeStateResult] = field("0+")
