"""OffsetCommitRequest and OffsetCommitKey and OffsetCommitResponse and OffsetCommitValue (API key 8)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32, int64


class OffsetCommitRequestPartition(Struct):
    partition_index: int32 = field("0+")
    committed_offset: int64 = field("0+")
    committed_leader_epoch: int32 = field("6+", default=-1)
    commit_timestamp: int64 = field("1", default=-1)
    committed_metadata: str | None = field("0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = field("0-9")
    topic_id: Uuid = field("10+")
    partitions: list[OffsetCommitRequestPartition] = field("0+")


class OffsetCommitRequest(Message, kind="request", api_key=8, versions="0-10", flexible="8+"):
    group_id: str = field("0+")
    generation_id_or_member_epoch: int32 = field("1+", default=-1)
    member_id: str = field("1+")
    group_instance_id: str | None = field("7+", nullable="7+", default=None)
    retention_time_ms: int64 = field("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = field("0+")


class OffsetCommitKey(Message, kind="data", api_key=1, versions="0"):
    group: str = field("0+")
    topic: str = field("0+")
    partition: int32 = field("0+")


class OffsetCommitResponsePartition(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")


class OffsetCommitResponseTopic(Struct):
    name: str = field("0-9")
    topic_id: Uuid = field("10+")
    partitions: list[OffsetCommitResponsePartition] = field("0+")


class OffsetCommitResponse(Message, kind="response", api_key=8, versions="0-10", flexible="8+"):
    throttle_time_ms: int32 = field("3+")
    topics: list[OffsetCommitResponseTopic] = field("0+")


class OffsetCommitValue(Message, kind="data", api_key=1, versions="0-4", flexible="4+"):
    offset: int64 = field("0+")
    leader_epoch: int32 = field("3+", default=-1)
    metadata: str = field("0+")
    commit_timestamp: int64 = field("0+")
    expire_timestamp: int64 = field("1", default=-1)
    topic_id: Uuid = field("4+", tag=0, tagged="4+")
