"""StreamsGroupTargetAssignmentMetadataKey and StreamsGroupTargetAssignmentMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int32, int64


class StreamsGroupTargetAssignmentMetadataKey(Message, kind="data", api_key=20, versions="0"):
    group_id: str = field("0+")


class StreamsGroupTargetAssignmentMetadataValue(Message, kind="data", api_key=20, versions="0", flexible="0+"):
    assignment_epoch: int32 = field("0+")
    assignment_timestamp: int64 = field("0+", tag=0, tagged="0+")
