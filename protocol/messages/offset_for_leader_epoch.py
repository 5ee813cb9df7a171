"""OffsetForLeaderEpochRequest and OffsetForLeaderEpochResponse (API key 23)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class OffsetForLeaderPartition(Struct):
    partition: int32 = field("0+")
    current_leader_epoch: int32 = field("2+", default=-1)
    leader_epoch: int32 = field("0+")


class OffsetForLeaderTopic(Struct):
    topic: str = field("0+")
    partitions: list[OffsetForLeaderPartition] = field("0+")


class OffsetForLeaderEpochRequest(Message, kind="request", api_key=23, versions="0-4", flexible="4+"):
    replica_id: int32 = field("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = field("0+")


class EpochEndOffset(Struct):
    error_code: int16 = field("0+")
    partition: int32 = field("0+")
    leader_epoch: int32 = field("1+", default=-1)
    end_offset: int64 = field("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = field("0+")
    partitions: list[EpochEndOffset] = field("0+")


class OffsetForLeaderEpochResponse(Message, kind="response", api_key=23, versions="0-4", flexible="4+"):
    throttle_time_ms: int32 = field("2+")
    topics: list[OffsetForLeaderTopicResult] = field("0+")
