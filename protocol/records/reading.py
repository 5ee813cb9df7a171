"""Reading the records of a batch of any magic as work in steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pybroker.protocol.compression import DEFAULT_LIMIT
from pybroker.protocol.records import legacy, record
from pybroker.protocol.records.header import MAGIC_V2, BatchHeader, Buffer, iter_headers
from pybroker.protocol.records.record import Record
from pybroker.protocol.work import Work

#: Weight of what may be done between two points of rest: bytes of keys and values, a record counting as RECORD more.
STEP = 32 << 10
RECORD = 200
_HEADERS_A_STEP = 256
#: Bytes of one batch from which on a checksum or a copy of it is long enough for a thread.
LARGE = 1 << 20


class Meter:
    """Says after each record (or batch) whether the work has to rest now. One for all of a piece of work."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEP

    def due(self, size: int) -> bool:
        """`size` bytes more have been read or written."""
        self._left -= RECORD + size
        if self._left > 0:
            return False
        self._left = STEP
        return True

    def due_after(self, found: Record) -> bool:
        """As `due`, for a record."""
        return self.due(len(found.key or b"") + len(found.value or b""))


def survey(records: Buffer, meter: Meter) -> Work[tuple[BatchHeader | None, bool]]:
    """The first batch's header, None where there is no whole batch, and whether there are more. Raises as iter_headers,
    whichever batch it is. Nothing is kept of the others: a set of magic 0 or 1 may hold millions."""
    first, count = None, 0
    for _, header in iter_headers(records):
        first = first or header
        count += 1
        if meter.due(0):
            yield None
    return first, count > 1


def reading(
    batch: Buffer, header: BatchHeader, limit: int = DEFAULT_LIMIT, *, payload: bytes | None = None,
    check_inner: bool = False,
) -> Work[Iterator[Record]]:  # fmt: skip
    """Every record of one batch, with what comes before the first one done in steps. Errors and arguments are those of
    record.iter_records and legacy.iter_records; `payload` is what `contents` gave, if it has been asked already."""
    if header.magic < MAGIC_V2 and not header.codec:
        return legacy.iter_records(batch, header, limit)
    if payload is None:
        payload = yield partial(contents, batch, header, limit)
    if header.magic >= MAGIC_V2:
        return record.iter_records(batch, header, limit, payload=payload)
    last = None
    for number, (_, message) in enumerate(legacy.inner_headers(payload)):
        last = message.base_offset
        if number % _HEADERS_A_STEP == 0:
            yield None
    return legacy.inner_records(payload, header, last, check_inner=check_inner)


def contents(batch: Buffer, header: BatchHeader, limit: int = DEFAULT_LIMIT) -> bytes:
    """The records area of a batch of magic 2, or the set in a wrapper of magic 0 or 1, decompressed."""
    unpack = record.payload_of if header.magic >= MAGIC_V2 else legacy.inner_set
    return unpack(batch, header, limit)
