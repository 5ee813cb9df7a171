"""ConsumerGroupTargetAssignmentMemberKey and ConsumerGroupTargetAssignmentMemberValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int32


class ConsumerGroupTargetAssignmentMemberKey(Message, kind="data", api_key=7, versions="0"):
    group_id: str = field("0+")
    member_id: str = field("0+")


class TopicPartition(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[int32] = field("0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, kind="data", api_key=7, versions="0", flexible="0+"):
    topic_partitions: list[TopicPartition] = field("0+")
