"""RemoteLogSegmentMetadataUpdateRecord."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int32, int64


class TopicIdPartitionEntry(Struct):
    name: str = field("0+")
    id: Uuid = field("0+")
    partition: int32 = field("0+")


class RemoteLogSegmentIdEntry(Struct):
    topic_id_partition: TopicIdPartitionEntry = field("0+")
    id: Uuid = field("0+")


class RemoteLogSegmentMetadataUpdateRecord(Message, kind="data", api_key=1, versions="0", flexible="0+"):
    remote_log_segment_id: RemoteLogSegmentIdEntry = field("0+")
    broker_id: int32 = field("0+")
    event_timestamp_ms: int64 = field("0+")
    custom_metadata: bytes | None = field("0+", nullable="0+", default=None)
    remote_log_segment_state: int8 = field("0+")
