"""The records of a batch as the cleaner needs them: keys, offsets, which have no value, and where they lie.

Values and headers are never copied. A batch whose inside is not as its header says raises Damaged, so that nothing is
ever dropped, or taken for the last of its key, on its account.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.header import ATTRIBUTES_AT, BATCH_OVERHEAD, BatchHeader, Buffer, crc32c
from pybroker.protocol.records.record import payload_of

_CUT_OFF = "a record is cut off"


class Damaged(ValueError):
    """The inside of a batch cannot be read; says why."""


class Scanned(NamedTuple):
    """The records of a batch of magic 2, in order.

    `offsets` are absolute; `starts` are positions in `payload`, the decompressed records area, with its end as the
    last; `tombstones` are the numbers of the records without a value.
    """

    payload: bytes
    keys: list[bytes | None]
    offsets: list[int]
    starts: list[int]
    tombstones: list[int]


def scan(batch: Buffer, header: BatchHeader) -> Scanned:
    """The records of the magic 2 batch that `batch` is. Raises Damaged, also for a wrong CRC."""
    if crc32c(memoryview(batch)[ATTRIBUTES_AT : header.size]) != header.crc:
        raise Damaged("its checksum does not match")
    try:
        payload = payload_of(batch, header) if header.codec else bytes(batch[BATCH_OVERHEAD : header.size])
    except KafkaError as error:
        raise Damaged(str(error)) from error
    try:
        return _scan(payload, header.count, header.base_offset, header.last_offset)
    except IndexError:
        raise Damaged(_CUT_OFF) from None


def _scan(data: bytes, count: int, base_offset: int, last_offset: int) -> Scanned:
    """One pass over all records; this loop is most of what compaction costs."""
    keys: list[bytes | None] = []
    offsets: list[int] = []
    starts: list[int] = []
    tombstones: list[int] = []
    size = len(data)
    at, offset = 0, base_offset - 1
    for number in range(count):
        starts.append(at)
        length = data[at]
        at += 1
        if length > 127:
            following = data[at]
            if following > 127:
                length, at = _long(data, at - 1)
            else:
                length += (following << 7) - 128
                at += 1
        end = at + (length >> 1)
        if length & 1 or end > size:
            raise Damaged(_CUT_OFF)
        at += 1  # attributes
        while data[at] > 127:  # timestamp delta
            at += 1
        delta = data[at + 1]
        at += 2
        if delta > 127:
            following = data[at]
            if following > 127:
                delta, at = _long(data, at - 1)
            else:
                delta += (following << 7) - 128
                at += 1
        following = base_offset + (delta >> 1)
        if delta & 1 or following <= offset:
            raise Damaged(f"offset delta {delta} of record {number} does not ascend")
        offset = following
        length = data[at]
        at += 1
        if length > 127:
            length, at = _long(data, at - 1)
        if length & 1:
            keys.append(None)
        else:
            start = at
            at += length >> 1
            keys.append(data[start:at])
        if at >= end:
            raise Damaged(_CUT_OFF)
        if data[at] == 1:  # the value's length is -1
            tombstones.append(number)
        offsets.append(offset)
        at = end
    if at != size or offset > last_offset:
        raise Damaged("there is more in it than its header says")
    starts.append(at)
    return Scanned(data, keys, offsets, starts, tombstones)


def scan_known(batch: Buffer, header: BatchHeader) -> Scanned:
    """As `scan`, of a batch that has been scanned before and whose offsets have no holes; where they lie only."""
    data = payload_of(batch, header)
    starts = [0]
    at = 0
    for _ in range(header.count):
        length = data[at]
        at += 1
        if length > 127:
            length, at = _long(data, at - 1)
        at += length >> 1
        starts.append(at)
    return Scanned(data, [], [], starts, [])


def _long(data: bytes, at: int) -> tuple[int, int]:
    """(value before zigzag, position after) of a varint."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise Damaged("a varint is too long")


class Rebased(NamedTuple):
    """A new records area, not compressed; its base timestamp, and the largest timestamp of its records."""

    payload: bytes
    base_timestamp: int
    max_timestamp: int


def rebase(scanned: Scanned, kept: list[int], old_base: int, new_base: int | None, fixed: int | None) -> Rebased:
    """The records area of the records `kept` (by number), their timestamps relative to another base.

    Timestamps are `old_base` plus the records' own deltas, or all `fixed` where that is given (LogAppendTime);
    `new_base` None stands for the first kept record's timestamp, which is what a fresh batch has.
    """
    data, starts = scanned.payload, scanned.starts
    parts: list[bytes] = []
    newest = -1
    base = new_base
    for number in kept:
        start, end = starts[number], starts[number + 1]
        _, body = _long(data, start)
        raw, after = _long(data, body + 1)
        timestamp = old_base + ((raw >> 1) ^ -(raw & 1)) if fixed is None else fixed
        if base is None:
            base = timestamp
        newest = max(newest, timestamp)
        if base == old_base and fixed is None:
            parts.append(data[start:end])
        else:
            delta = varint(timestamp - base)
            tail = data[after:end]
            parts += (varint(1 + len(delta) + len(tail)), data[body : body + 1], delta, tail)
    return Rebased(b"".join(parts), old_base if base is None else base, newest)


def varint(value: int) -> bytes:
    """A zigzag varint."""
    raw = value << 1 if value >= 0 else (~value << 1) | 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
