"""ConsumerGroupTargetAssignmentMetadataKey and ConsumerGroupTargetAssignmentMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int32, int64


class ConsumerGroupTargetAssignmentMetadataKey(Message, kind="data", api_key=6, versions="0"):
    group_id: str = field("0+")


class ConsumerGroupTargetAssignmentMetadataValue(Message, kind="data", api_key=6, versions="0", flexible="0+"):
    assignment_epoch: int32 = field("0+")
    assignment_timestamp: int64 = field("0+", tag=0, tagged="0+")
