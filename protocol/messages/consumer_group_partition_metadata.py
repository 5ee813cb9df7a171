"""ConsumerGroupPartitionMetadataKey and ConsumerGroupPartitionMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int32


class ConsumerGroupPartitionMetadataKey(Message, kind="data", api_key=4, versions="0"):
    group_id: str = field("0+")


class PartitionMetadata(Struct):
    partition: int32 = field("0+")
    racks: list[str] = field("0+")


class TopicMetadata(Struct):
    topic_id: Uuid = field("0+")
    topic_name: str = field("0+")
    num_partitions: int32 = field("0+")
    partition_metadata: list[PartitionMetadata] = field("0+")


class ConsumerGroupPartitionMetadataValue(Message, kind="data", api_key=4, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = field("0+")
