"""ShareGroupStatePartitionMetadataKey and ShareGroupStatePartitionMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int32


class ShareGroupStatePartitionMetadataKey(Message, kind="data", api_key=15, versions="0"):
    group_id: str = field("0+")


class TopicPartitionsInfo(Struct):
    topic_id: Uuid = field("0+")
    topic_name: str = field("0+")
    partitions: list[int32] = field("0+")


class TopicInfo(Struct):
    topic_id: Uuid = field("0+")
    topic_name: str = field("0+")


class ShareGroupStatePartitionMetadataValue(Message, kind="data", api_key=15, versions="0", flexible="0+"):
    initializing_topics: list[TopicPartitionsInfo] = field("0+")
    initialized_topics: list[TopicPartitionsInfo] = field("0+")
    deleting_topics: list[TopicInfo] = field("0+")
