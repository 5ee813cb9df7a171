"""The `<offset>.snapshot` file: every producer's state up to, not including, that offset.

Layout (big-endian, Kafka's ProducerStateManager, version 1): int16 version, uint32 CRC-32C of everything behind it,
int32 count, then per producer 46 bytes: int64 producer id, int16 epoch, int32 last sequence, int64 last offset,
int32 offset delta of the last batch, int64 timestamp (ms), int32 coordinator epoch (-1: no marker seen), int64 first
offset of the open transaction (-1: none). No producers at all make a file of 10 bytes.

Only the last batch of a producer is kept; `producer_recall` finds those before it in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

from pybroker.protocol.records.header import crc32c

VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_AT = 2
_COUNT_AT = 6


class SnapshotEntry(NamedTuple):
    """One producer as the file has it; last_sequence and last_offset are -1 where the producer has no batch."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


class CorruptSnapshot(ValueError):
    """The bytes are no producer snapshot; the message says where they break."""


def encode_snapshot(entries: Collection[SnapshotEntry]) -> bytes:
    """The whole file."""
    data = bytearray(_HEAD.size + _ENTRY.size * len(entries))
    at = _HEAD.size
    for entry in entries:
        _ENTRY.pack_into(data, at, *entry)
        at += _ENTRY.size
    _HEAD.pack_into(data, 0, VERSION, 0, len(entries))
    struct.pack_into(">I", data, _CRC_AT, crc32c(memoryview(data)[_COUNT_AT:]))
    return bytes(data)


def decode_snapshot(data: bytes) -> Iterable[SnapshotEntry]:
    """The entries of a file, in its order; CorruptSnapshot where version, checksum or length do not fit."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few for a producer snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"unknown producer snapshot version {version}")
    if crc != crc32c(memoryview(data)[_COUNT_AT:]):
        raise CorruptSnapshot("the checksum does not match")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{len(data)} bytes do not hold the {count} entries announced")
    return map(SnapshotEntry._make, _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]))


def read_entries(data: bytes) -> list[SnapshotEntry]:
    """For tools: the whole entries of a file that `decode_snapshot` refuses, whatever it announces."""
    body = data[_HEAD.size :]
    return [SnapshotEntry._make(each) for each in _ENTRY.iter_unpack(body[: len(body) // _ENTRY.size * _ENTRY.size])]
