"""DeleteShareGroupStateRequest and DeleteShareGroupStateResponse (API key 86)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32


class PartitionData(Struct):
    partition: int32 = field("0+")


class DeleteStateData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionData] = field("0+")


class DeleteShareGroupStateRequest(Message, kind="request", api_key=86, versions="0", flexible="0+"):
    group_id: str = field("0+")
    topics: list[DeleteStateData] = field("0+")


class PartitionResult(Struct):
    partition: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)


class DeleteStateResult(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionResult] = field("0+")


class DeleteShareGroupStateResponse(Message, kind="response", api_key=86, versions="0", flexible="0+"):
    results: list[DeleteStateResult] = field("0+")
