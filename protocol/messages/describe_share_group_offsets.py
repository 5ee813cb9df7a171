"""DescribeShareGroupOffsetsRequest and DescribeShareGroupOffsetsResponse (API key 90)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32, int64


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field("0+")
    partitions: list[int32] = field("0+")


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str = field("0+")
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field("0+", nullable="0+")


class DescribeShareGroupOffsetsRequest(Message, kind="request", api_key=90, versions="0-1", flexible="0+"):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = field("0+")


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int32 = field("0+")
    start_offset: int64 = field("0+")
    leader_epoch: int32 = field("0+")
    lag: int64 = field("1+", default=-1)
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field("0+")
    topic_id: Uuid = field("0+")
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field("0+")


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = field("0+")
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Message, kind="response", api_key=90, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field("0+")
