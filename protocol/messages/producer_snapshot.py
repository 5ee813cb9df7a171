"""ProducerSnapshot."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64, uint32


class ProducerEntry(Struct):
    producer_id: int64 = field("1+")
    epoch: int16 = field("1+")
    last_sequence: int32 = field("1+")
    last_offset: int64 = field("1+")
    offset_delta: int32 = field("1+")
    timestamp: int64 = field("1+")
    coordinator_epoch: int32 = field("1+")
    current_txn_first_offset: int64 = field("1+")


class ProducerSnapshot(Message, kind="data", versions="1"):
    crc: uint32 = field("1+")
    producer_entries: list[ProducerEntry] = field("1+")
