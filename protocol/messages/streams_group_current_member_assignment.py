"""StreamsGroupCurrentMemberAssignmentKey and StreamsGroupCurrentMemberAssignmentValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int32


class StreamsGroupCurrentMemberAssignmentKey(Message, kind="data", api_key=22, versions="0"):
    group_id: str = field("0+")
    member_id: str = field("0+")


class TaskIds(Struct):
    subtopology_id: str = field("0+")
    partitions: list[int32] = field("0+")
    assignment_epochs: list[int32] | None = field("0+", nullable="0+", tag=0, tagged="0+")


class StreamsGroupCurrentMemberAssignmentValue(Message, kind="data", api_key=22, versions="0", flexible="0+"):
    member_epoch: int32 = field("0+")
    previous_member_epoch: int32 = field("0+")
    state: int8 = field("0+")
    active_tasks: list[TaskIds] = field("0+")
    standby_tasks: list[TaskIds] = field("0+")
    warmup_tasks: list[TaskIds] = field("0+")
    active_tasks_pending_revocation: list[TaskIds] = field("0+")
    standby_tasks_pending_revocation: list[TaskIds] = field("0+")
    warmup_tasks_pending_revocation: list[TaskIds] = field("0+")
