"""ConsumerProtocolAssignment."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int32


class TopicPartition(Struct):
    topic: str = field("0+")
    partitions: list[int32] = field("0+")


class ConsumerProtocolAssignment(Message, kind="data", versions="0-3"):
    assigned_partitions: list[TopicPartition] = field("0+")
    user_data: bytes | None = field("0+", nullable="0+", default=None)
