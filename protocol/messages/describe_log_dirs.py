"""DescribeLogDirsRequest and DescribeLogDirsResponse (API key 35)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class DescribableLogDirTopic(Struct):
    topic: str = field("0+")
    partitions: list[int32] = field("0+")


class DescribeLogDirsRequest(Message, kind="request", api_key=35, versions="0-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = field("0+", nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: int32 = field("0+")
    partition_size: int64 = field("0+")
    offset_lag: int64 = field("0+")
    is_future_key: bool = field("0+")


class DescribeLogDirsTopic(Struct):
    name: str = field("0+")
    partitions: list[DescribeLogDirsPartition] = field("0+")


class DescribeLogDirsResult(Struct):
    error_code: int16 = field("0+")
    log_dir: str = field("0+")
    topics: list[DescribeLogDirsTopic] = field("0+")
    total_bytes: int64 = field("4+", default=-1)
    usable_bytes: int64 = field("4+", default=-1)
    is_cordoned: bool = field("5+")


class DescribeLogDirsResponse(Message, kind="response", api_key=35, versions="0-5", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("3+")
    results: list[DescribeLogDirsResult] = field("0+")
