"""ShareGroupPartitionMetadataKey and ShareGroupPartitionMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int32


class ShareGroupPartitionMetadataKey(Message, kind="data", versions="9"):
    group_id: str = field("9+")


class TopicPartitionsInfo(Struct):
    topic_id: Uuid = field("0+")
    topic_name: str = field("0+")
    partitions: list[int32] = field("0+")


class TopicInfo(Struct):
    topic_id: Uuid = field("0+")
    topic_name: str = field("0+")


class ShareGroupPartitionMetadataValue(Message, kind="data", versions="0", flexible="0+"):
    initialized_topics: list[TopicPartitionsInfo] = field("0+")
    deleting_topics: list[TopicInfo] = field("0+")
