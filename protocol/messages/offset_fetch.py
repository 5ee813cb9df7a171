"""OffsetFetchRequest and OffsetFetchResponse (API key 9)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32, int64


class OffsetFetchRequestTopic(Struct):
    name: str = field("0-7")
    partition_indexes: list[int32] = field("0-7")


class OffsetFetchRequestTopics(Struct):
    name: str = field("8-9")
    topic_id: Uuid = field("10+")
    partition_indexes: list[int32] = field("8+")


class OffsetFetchRequestGroup(Struct):
    group_id: str = field("8+")
    member_id: str | None = field("9+", nullable="9+", default=None)
    member_epoch: int32 = field("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = field("8+", nullable="8+")


class OffsetFetchRequest(Message, kind="request", api_key=9, versions="0-10", flexible="6+"):
    group_id: str = field("0-7")
    topics: list[OffsetFetchRequestTopic] | None = field("0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field("8+")
    require_stable: bool = field("7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int32 = field("0-7")
    committed_offset: int64 = field("0-7")
    committed_leader_epoch: int32 = field("5-7", default=-1)
    metadata: str | None = field("0-7", nullable="0-7")
    error_code: int16 = field("0-7")


class OffsetFetchResponseTopic(Struct):
    name: str = field("0-7")
    partitions: list[OffsetFetchResponsePartition] = field("0-7")


class OffsetFetchResponsePartitions(Struct):
    partition_index: int32 = field("8+")
    committed_offset: int64 = field("8+")
    committed_leader_epoch: int32 = field("8+", default=-1)
    metadata: str | None = field("8+", nullable="8+")
    error_code: int16 = field("8+")


class OffsetFetchResponseTopics(Struct):
    name: str = field("8-9")
    topic_id: Uuid = field("10+")
    partitions: list[OffsetFetchResponsePartitions] = field("8+")


class OffsetFetchResponseGroup(Struct):
    group_id: str = field("8+")
    topics: list[OffsetFetchResponseTopics] = field("8+")
    error_code: int16 = field("8+")


class OffsetFetchResponse(Message, kind="response", api_key=9, versions="0-10", flexible="6+"):
    throttle_time_ms: int32 = field("3+")
    topics: list[OffsetFetchResponseTopic] = field("0-7")
    error_code: int16 = field("2-7")
    groups: list[OffsetFetchResponseGroup] = field("8+")
