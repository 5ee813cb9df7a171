"""Reading a log for Fetch: by the rules of KIP-74, without copying and without waiting for the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.storage.files import FileSlice, WouldBlock
from pybroker.storage.segment import Batch, Segment

if TYPE_CHECKING:
    from pybroker.storage.log import Log

SENDFILE_FROM = 64 * 1024  # bytes from which on a slice is cheaper than a copy


class LogRead:
    """What a read found.

    `records` is b"" when there is nothing, bytes-like when it is little, else a FileSlice that has to be released.
    `segment_base` and `position` say where it begins in the log (-1 when there is nothing). `incomplete`: the first
    batch is larger than what was asked for, and is cut off (not with min_one).
    """

    __slots__ = ("incomplete", "offset", "position", "records", "segment_base")

    def __init__(
        self,
        records: FileSlice | bytes | bytearray,
        offset: int,
        segment_base: int = -1,
        position: int = -1,
        incomplete: bool = False,
    ) -> None:
        self.records = records
        self.offset = offset
        self.segment_base = segment_base
        self.position = position
        self.incomplete = incomplete


def read(log: Log, offset: int, max_bytes: int, max_offset: int, min_one: bool, blocking: bool) -> LogRead:
    """The batches from the one that holds `offset` on, below `max_offset`, of one segment, at most `max_bytes`.

    The last batch may be cut off by max_bytes; with `min_one` the first one is whole. `max_offset` is the high
    watermark, last stable offset or log end, by who asks. Raises KafkaError OFFSET_OUT_OF_RANGE outside
    [log start, log end], UNKNOWN_SERVER_ERROR for negative max_bytes, KAFKA_STORAGE_ERROR; WouldBlock when the bytes
    are not cached and `blocking` is not set.
    """
    end = log.log_end_offset
    if not log.log_start_offset <= offset <= end:
        raise KafkaError(Errors.OFFSET_OUT_OF_RANGE)
    if offset >= max_offset or offset == end:
        return LogRead(b"", offset)
    try:
        if offset == log.tail_offset:
            segment, position = log.active, log.tail_position
            first: Batch | None = Batch(position, segment.size - position, offset, end - 1)
        else:
            number = len(log.bases) - 1 if offset >= log.bases[-1] else log.segment_number(offset)
            segment, first = _locate(log, number, offset, blocking)
        if first is None:
            return LogRead(b"", offset)
        if max_offset >= end or (log.segments[-1] is not segment and max_offset >= _end_of(log, segment)):
            max_position = segment.size
        else:
            stop = segment.locate(max_offset, blocking=blocking)
            max_position = segment.size if stop is None else stop.position
        position, length, incomplete = _limit(first, max_bytes, max_position, min_one)
        if not length:
            return LogRead(b"", offset, segment.base_offset, position, incomplete)
        records = _take(segment, position, length, blocking)
    except OSError as error:
        raise log.storage_error(error) from error
    return LogRead(records, offset, segment.base_offset, position, incomplete)


def _limit(first: Batch, max_bytes: int, max_position: int, min_one: bool) -> tuple[int, int, bool]:
    """(position, length, whether the first batch is cut off) of a read that starts at batch `first`."""
    if max_bytes < 0:
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR)
    most = max(max_bytes, first.size) if min_one else max_bytes
    length = max(0, min(most, max_position - first.position))
    return first.position, length, most < first.size


def _locate(log: Log, number: int, offset: int, blocking: bool) -> tuple[Segment, Batch | None]:
    """The first batch that ends at or above `offset`, from segment `number` on: earlier ones may end in a hole."""
    for segment in log.segments[number:]:
        first = segment.locate(offset, blocking=blocking)
        if first is not None:
            return segment, first
    return log.active, None


def _end_of(log: Log, segment: Segment) -> int:
    """The base offset of the segment behind a segment that is not the last."""
    return log.bases[log.segment_number(segment.base_offset) + 1]


def _take(segment: Segment, position: int, length: int, blocking: bool) -> FileSlice | bytes | bytearray:
    if length < SENDFILE_FROM:
        return segment.file.read(position, length, blocking=blocking)
    if blocking:
        found = segment.slice(position, length)
        found.pull_in()
        return found
    if not segment.file.is_cached(position, length):
        raise WouldBlock(segment.file, position, length)
    return segment.slice(position, length)


def upper_bound(log: Log, read: LogRead) -> int:
    """An offset above all that `read` holds: that of the next index entry, or where the segment ends."""
    number = log.segment_number(read.segment_base)
    if number < 0 or not len(read.records):
        return read.offset
    segment = log.segments[number]
    bound = segment.offset_index.upper_bound(read.position + len(read.records))
    if bound is not None:
        return bound
    return log.log_end_offset if segment is log.active else log.bases[number + 1]


def aborted_transactions(log: Log, start: int, end: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions with records in [start, end), by their markers."""
    found: list[tuple[int, int]] = []
    for segment in log.segments[max(0, log.segment_number(start)) :]:
        entries, complete = segment.txn_index.collect(start, end)
        found += [(entry.producer_id, entry.first_offset) for entry in entries]
        if complete:
            break
    return found
