"""RemoteLogSegmentMetadataSnapshotRecord."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int32, int64


class SegmentLeaderEpochEntry(Struct):
    leader_epoch: int32 = field("0+")
    offset: int64 = field("0+")


class RemoteLogSegmentMetadataSnapshotRecord(Message, kind="data", api_key=3, versions="0", flexible="0+"):
    segment_id: Uuid = field("0+")
    start_offset: int64 = field("0+")
    end_offset: int64 = field("0+")
    broker_id: int32 = field("0+")
    max_timestamp_ms: int64 = field("0+")
    event_timestamp_ms: int64 = field("0+")
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = field("0+")
    segment_size_in_bytes: int32 = field("0+")
    custom_metadata: bytes | None = field("0+", nullable="0+", default=None)
    remote_log_segment_state: int8 = field("0+")
    txn_index_empty: bool = field("0+", tag=0, tagged="0+")
