"""Walking the batches of a log file from a position, in pieces of bounded size."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.header import (
    LENGTH_AT,
    LOG_OVERHEAD,
    MIN_MESSAGE_OVERHEAD,
    BatchHeader,
    check_crc,
    read_header,
)

CHUNK = 1 << 20


class BrokenBatch(ValueError):
    """What follows at `position` is no whole, valid batch; `why` says what is wrong with it."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"position {position}: {why}")
        self.position = position
        self.why = why


class _Window:
    """A moving view of a file: what has been read is handed out again without another read."""

    __slots__ = ("_buffer", "_descriptor", "_end", "_filled", "_start")

    def __init__(self, descriptor: int, end: int) -> None:
        self._descriptor = descriptor
        self._end = end
        self._buffer = memoryview(b"")
        self._start = self._filled = 0

    def view(self, position: int, size: int) -> memoryview | None:
        """`size` bytes at `position`, None if the file's end comes before; valid until the next call."""
        if position + size > self._end:
            return None
        if not self._start <= position or position + size > self._start + self._filled:
            self._read(position, size)
        at = position - self._start
        return self._buffer[at : at + size] if at + size <= self._filled else None

    def _read(self, position: int, size: int) -> None:
        wanted = min(max(size, CHUNK), self._end - position)
        if wanted > len(self._buffer):
            self._buffer = memoryview(bytearray(wanted))
        self._start, self._filled = position, 0
        while self._filled < wanted:
            count = os.preadv(self._descriptor, [self._buffer[self._filled : wanted]], position + self._filled)
            if not count:
                break
            self._filled += count


def scan_batches(
    descriptor: int, start: int, end: int, *, check: bool = True
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, whole batch) for every batch in [start, end) of a file.

    The view is valid until the next step. Raises BrokenBatch where a batch is cut off, its size or magic are
    impossible, its offsets do not ascend, or, with `check`, its CRC is wrong; OSError when the disk fails.
    """
    window = _Window(descriptor, end)
    position, last_offset = start, -1
    while position < end:
        head = window.view(position, LOG_OVERHEAD)
        if head is None:
            raise BrokenBatch(position, f"a batch's header is cut off after {end - position} bytes")
        size = int.from_bytes(head[LENGTH_AT:], "big", signed=True) + LOG_OVERHEAD
        if size < MIN_MESSAGE_OVERHEAD + LOG_OVERHEAD:
            raise BrokenBatch(position, f"a batch's size field says {size - LOG_OVERHEAD}")
        batch = window.view(position, size)
        if batch is None:
            raise BrokenBatch(position, f"a batch of {size} bytes is cut off after {end - position}")
        try:
            header = read_header(batch)
        except KafkaError as error:
            raise BrokenBatch(position, str(error)) from None
        if header.last_offset <= last_offset:
            raise BrokenBatch(position, f"offset {header.last_offset} follows offset {last_offset}")
        if check and not check_crc(batch, 0, size):
            raise BrokenBatch(position, "a batch's checksum does not match")
        yield position, header, batch
        last_offset = header.last_offset
        position += size
