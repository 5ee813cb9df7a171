"""SubscriptionInfoData."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int32, int64


class TaskId(Struct):
    topic_group_id: int32 = field("1-6")
    partition: int32 = field("1-6")


class PartitionToOffsetSum(Struct):
    partition: int32 = field("7-9")
    offset_sum: int64 = field("7-9")


class TaskOffsetSum(Struct):
    topic_group_id: int32 = field("7+")
    partition: int32 = field("10+")
    offset_sum: int64 = field("10+")
    named_topology: str | None = field("10+", nullable="10+")
    partition_to_offset_sum: list[PartitionToOffsetSum] = field("7-9")


class ClientTag(Struct):
    key: bytes = field("11+")
    value: bytes = field("11+")


class SubscriptionInfoData(Message, kind="data", versions="1-11"):
    version: int32 = field("1+")
    latest_supported_version: int32 = field("3+", default=-1)
    process_id: Uuid = field("1+")
    prev_tasks: list[TaskId] = field("1-6")
    standby_tasks: list[TaskId] = field("1-6")
    user_end_point: bytes = field("2+")
    task_offset_sums: list[TaskOffsetSum] = field("7+")
    unique_field: int8 = field("8+")
    error_code: int32 = field("9+")
    client_tags: list[ClientTag] = field("11+")
