"""TxnOffsetCommitRequest and TxnOffsetCommitResponse (API key 28)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int32 = field("0+")
    committed_offset: int64 = field("0+")
    committed_leader_epoch: int32 = field("2+", default=-1)
    committed_metadata: str | None = field("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = field("0+")
    partitions: list[TxnOffsetCommitRequestPartition] = field("0+")


class TxnOffsetCommitRequest(Message, kind="request", api_key=28, versions="0-5", flexible="3+"):
    transactional_id: str = field("0+")
    group_id: str = field("0+")
    producer_id: int64 = field("0+")
    producer_epoch: int16 = field("0+")
    generation_id: int32 = field("3+", default=-1)
    member_id: str = field("3+")
    group_instance_id: str | None = field("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field("0+")


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")


class TxnOffsetCommitResponseTopic(Struct):
    name: str = field("0+")
    partitions: list[TxnOffsetCommitResponsePartition] = field("0+")


class TxnOffsetCommitResponse(Message, kind="response", api_key=28, versions="0-5", flexible="3+"):
    throttle_time_ms: int32 = field("0+")
    topics: list[TxnOffsetCommitResponseTopic] = field("0+")
