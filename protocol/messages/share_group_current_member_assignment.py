"""ShareGroupCurrentMemberAssignmentKey and ShareGroupCurrentMemberAssignmentValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int32


class ShareGroupCurrentMemberAssignmentKey(Message, kind="data", api_key=14, versions="0"):
    group_id: str = field("0+")
    member_id: str = field("0+")


class TopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[int32] = field("0+")


class ShareGroupCurrentMemberAssignmentValue(Message, kind="data", api_key=14, versions="0", flexible="0+"):
    member_epoch: int32 = field("0+")
    previous_member_epoch: int32 = field("0+")
    state: int8 = field("0+")
    assigned_partitions: list[TopicPartitions] = field("0+")
