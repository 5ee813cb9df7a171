"""StreamsGroupTargetAssignmentMemberKey and StreamsGroupTargetAssignmentMemberValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int32


class StreamsGroupTargetAssignmentMemberKey(Message, kind="data", api_key=21, versions="0"):
    group_id: str = field("0+")
    member_id: str = field("0+")


class TaskIds(Struct):
    subtopology_id: str = field("0+")
    partitions: list[int32] = field("0+")


class StreamsGroupTargetAssignmentMemberValue(Message, kind="data", api_key=21, versions="0", flexible="0+"):
    active_tasks: list[TaskIds] = field("0+")
    standby_tasks: list[TaskIds] = field("0+")
    warmup_tasks: list[TaskIds] = field("0+")
