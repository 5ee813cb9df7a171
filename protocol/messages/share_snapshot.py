"""ShareSnapshotKey and ShareSnapshotValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int16, int32, int64


class ShareSnapshotKey(Message, kind="data", api_key=0, versions="0"):
    group_id: str = field("0+")
    topic_id: Uuid = field("0+")
    partition: int32 = field("0+")


class StateBatch(Struct):
    first_offset: int64 = field("0+")
    last_offset: int64 = field("0+")
    delivery_state: int8 = field("0+")
    delivery_count: int16 = field("0+")


class ShareSnapshotValue(Message, kind="data", api_key=0, versions="0", flexible="0+"):
    snapshot_epoch: int32 = field("0+")
    state_epoch: int32 = field("0+")
    leader_epoch: int32 = field("0+")
    start_offset: int64 = field("0+")
    delivery_complete_count: int32 = field("0+", tag=0, tagged="0+", default=-1)
    create_timestamp: int64 = field("0+")
    write_timestamp: int64 = field("0+")
    state_batches: list[StateBatch] = field("0+")
