"""RemotePartitionDeleteMetadataRecord."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int32, int64


class TopicIdPartitionEntry(Struct):
    name: str = field("0+")
    id: Uuid = field("0+")
    partition: int32 = field("0+")


class RemotePartitionDeleteMetadataRecord(Message, kind="data", api_key=2, versions="0", flexible="0+"):
    topic_id_partition: TopicIdPartitionEntry = field("0+")
    broker_id: int32 = field("0+")
    event_timestamp_ms: int64 = field("0+")
    remote_partition_delete_state: int8 = field("0+")
