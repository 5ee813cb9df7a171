"""ConsumerProtocolSubscription."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int32


class TopicPartition(Struct):
    topic: str = field("1+")
    partitions: list[int32] = field("1+")


class ConsumerProtocolSubscription(Message, kind="data", versions="0-3"):
    topics: list[str] = field("0+")
    user_data: bytes | None = field("0+", nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = field("1+")
    generation_id: int32 = field("2+", default=-1)
    rack_id: str | None = field("3+", nullable="3+", default=None)
