"""Finding offsets by time: ListOffsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records import legacy, record
from pybroker.protocol.records.header import MAGIC_V0, MAGIC_V2, NO_TIMESTAMP, BatchHeader
from pybroker.protocol.records.record import Record
from pybroker.storage.segment import Segment

if TYPE_CHECKING:
    from pybroker.storage.log import Log

LATEST = -1
EARLIEST = -2

Found = tuple[int, int, int]


def offset_for_timestamp(log: Log, timestamp: int, blocking: bool) -> Found | None:
    """(timestamp, offset, leader epoch) of the first record at or behind `timestamp` (ms); None when there is none.

    Control records count. The epoch is -1 for formats that have none. Raises KafkaError
    UNSUPPORTED_FOR_MESSAGE_FORMAT for data of magic 0, WouldBlock unless `blocking`, KAFKA_STORAGE_ERROR.
    """
    start = log.log_start_offset
    try:
        for segment in log.segments:
            if segment.largest_timestamp >= timestamp:
                return _search(segment, timestamp, start, blocking)
    except OSError as error:
        raise log.storage_error(error) from error
    return None


def _search(segment: Segment, timestamp: int, start: int, blocking: bool) -> Found | None:
    from_offset = max(segment.time_index.lookup(timestamp), start)
    for position, header in segment.walk(segment.offset_index.lookup(from_offset), blocking=blocking):
        _check_format(header)
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        for found in records_at(segment, position, header, blocking):
            if found.timestamp >= timestamp and found.offset >= start:
                return found.timestamp, found.offset, header.leader_epoch
    return None


def max_timestamp_offset(log: Log, blocking: bool) -> Found | None:
    """(timestamp, offset, leader epoch) of the first record with the largest timestamp; None when none has one.

    Raises as offset_for_timestamp.
    """
    try:
        for segment in log.segments:
            segment.read_timestamps()
        segment = max(log.segments, key=lambda segment: segment.max_timestamp)
        wanted, offset = segment.max_timestamp, segment.max_timestamp_offset
        for position, header in segment.walk(segment.offset_index.lookup(offset), blocking=blocking):
            _check_format(header)
            if header.max_timestamp == wanted != NO_TIMESTAMP:
                return wanted, _first_with(wanted, segment, position, header, blocking), header.leader_epoch
    except OSError as error:
        raise log.storage_error(error) from error
    return None


def _first_with(timestamp: int, segment: Segment, position: int, header: BatchHeader, blocking: bool) -> int:
    """The first record of the batch with that timestamp; its last one when its header is wrong about it."""
    for found in records_at(segment, position, header, blocking):
        if found.timestamp == timestamp:
            return found.offset
    return header.last_offset


def _check_format(header: BatchHeader) -> None:
    if header.magic == MAGIC_V0:
        raise KafkaError(Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT)


def records_at(segment: Segment, position: int, header: BatchHeader, blocking: bool) -> Iterator[Record]:
    """The records of the batch at `position`. Raises WouldBlock, and KafkaError when they cannot be read."""
    batch = segment.file.read(position, header.size, blocking=blocking)
    if header.magic >= MAGIC_V2:
        return record.iter_records(batch, header)
    return legacy.iter_records(batch, header)


def legacy_offsets_before(log: Log, timestamp: int, max_num: int) -> list[int]:
    """ListOffsets 0: at most `max_num` segment ends below, newest first.

    An offset counts when its segment was last written to before `timestamp` (ms); LATEST and EARLIEST as ever.
    """
    points = [(max(segment.base_offset, log.log_start_offset), segment.last_modified_ms) for segment in log.segments]
    if log.active.size:
        points.append((log.log_end_offset, log.host.clock.now_ms()))
    if timestamp == LATEST:
        count = len(points)
    elif timestamp == EARLIEST:
        count = 1
    else:
        count = max((number for number, (_, modified) in enumerate(points, 1) if modified <= timestamp), default=0)
    chosen = [offset for offset, _ in reversed(points[:count])]
    return sorted(chosen[: max(0, max_num)], reverse=True)
