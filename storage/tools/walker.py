"""Walking a log file with tools: every batch that has the form of one, whether its checksum is right or not.

Where recovery (`scanner`) stops at a wrong checksum, a tool wants to see what comes behind it. Memory is bounded by the
window, however large a batch claims to be.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast
from zlib import crc32

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.header import (
    ATTRIBUTES_AT,
    BATCH_OVERHEAD,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MIN_MESSAGE_OVERHEAD,
    BatchHeader,
    Buffer,
    crc32c,
    read_header,
)
from pybroker.storage.scanner import BrokenBatch

WINDOW = 1 << 20
_crc32c = cast("Callable[[Buffer, int], int]", crc32c)  # which also goes on from an earlier sum


class CutOff(BrokenBatch):
    """The file ends before the batch does."""


class Walked(NamedTuple):
    """One batch of a file; `valid` is whether its checksum is right."""

    position: int
    header: BatchHeader
    valid: bool


def walk_log(descriptor: int, end: int, start: int = 0) -> Iterator[Walked]:
    """Every batch in [start, end) of a file. BrokenBatch where none can begin, CutOff where one is not whole."""
    position, window, window_at = start, memoryview(b""), start
    while position < end:
        at = position - window_at
        if at + BATCH_OVERHEAD > len(window):
            window, window_at, at = memoryview(os.pread(descriptor, WINDOW, position)), position, 0
        left = end - position
        if left < BATCH_OVERHEAD and left < LOG_OVERHEAD + MIN_MESSAGE_OVERHEAD:
            raise CutOff(position, f"a batch's header is cut off after {left} bytes")
        length = int.from_bytes(window[at + LENGTH_AT : at + LENGTH_AT + 4], "big", signed=True)
        if length < MIN_MESSAGE_OVERHEAD:
            raise BrokenBatch(position, f"a batch's size field says {length}")
        size = length + LOG_OVERHEAD
        if size > left:
            raise CutOff(position, f"a batch of {size} bytes is cut off after {left}")
        try:
            header = read_header(window, at)
        except KafkaError as error:
            raise BrokenBatch(position, str(error)) from None
        if size > len(window) - at:
            window, window_at, at = memoryview(os.pread(descriptor, WINDOW, position)), position, 0
        yield Walked(position, header, header.crc == _checksum(descriptor, position, size, window[at : at + size]))
        position += size


def read_batch(descriptor: int, position: int, size: int) -> bytes:
    """One whole batch."""
    return os.pread(descriptor, size, position)


def _checksum(descriptor: int, position: int, size: int, head: memoryview) -> int:
    """The checksum a batch ought to carry; `head` is as much of it as is in memory."""
    magic = head[MAGIC_AT]
    update, start = (_crc32c, ATTRIBUTES_AT) if magic >= MAGIC_V2 else (crc32, MAGIC_AT)
    total = update(head[start:], 0)
    at = len(head)
    while at < size:
        piece = os.pread(descriptor, min(WINDOW, size - at), position + at)
        if not piece:
            return -1
        total = update(piece, total)
        at += len(piece)
    return total
