"""Deleting the beginning of a log: by age, by size, and below the log start offset that DeleteRecords moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.storage.segment import DELETED_SUFFIX, Segment

if TYPE_CHECKING:
    from pybroker.storage.log import Log

logger = logging.getLogger(__name__)


def delete_old_segments(log: Log) -> int:
    """Delete what retention.ms, retention.bytes and the log start offset no longer keep; how many segments.

    Only from the first one on, never at or above the high watermark. Where cleanup.policy lacks delete only the log
    start offset counts. KafkaError KAFKA_STORAGE_ERROR.
    """
    try:
        deleted = _delete(log, lambda number, _: _is_below_start(log, number), "lies below the log start offset")
        if log.config.delete:
            deleted += _delete_by_size(log) + _delete_by_age(log)
    except OSError as error:
        raise log.storage_error(error) from error
    return deleted


def _is_below_start(log: Log, number: int) -> bool:
    return number + 1 < len(log.bases) and log.bases[number + 1] <= log.log_start_offset


def _delete_by_size(log: Log) -> int:
    limit = log.config.retention_bytes
    if limit < 0:
        return 0
    excess = log.size - limit

    def too_much(_: int, segment: Segment) -> bool:
        nonlocal excess
        if excess < segment.size:
            return False
        excess -= segment.size
        return True

    return _delete(log, too_much, "is more than retention.bytes") if excess >= 0 else 0


def _delete_by_age(log: Log) -> int:
    limit = log.config.retention_ms
    if limit < 0:
        return 0
    oldest = log.host.clock.now_ms() - limit
    return _delete(log, lambda _, segment: segment.largest_timestamp < oldest, "is older than retention.ms")


def _delete(log: Log, is_over: Callable[[int, Segment], bool], why: str) -> int:
    """Delete the first segments for as long as `is_over(number, segment)` says so; how many."""
    count = 0
    for number, segment in enumerate(log.segments):
        end = log.bases[number + 1] if number + 1 < len(log.bases) else log.log_end_offset
        is_empty_last = segment is log.active and not segment.size
        if is_empty_last or end > log.high_watermark or not is_over(number, segment):
            break
        count += 1
    if count == len(log.segments) and log.queue is not None and log.queue.busy:
        count -= 1  # a write is under way at its end; the next round finds it
    if not count:
        return 0
    if count == len(log.segments):
        log.roll()  # there is always an active segment
    gone = log.segments[:count]
    rename_away(gone)
    del log.segments[:count], log.bases[:count]
    for segment in gone:
        logger.info("segment %d of %r (%d bytes) %s", segment.base_offset, log, segment.size, why)
    remove_later(log, gone)
    if log.log_start_offset < log.bases[0]:
        _set_log_start(log, log.bases[0])
    return count


def rename_away(segments: Sequence[Segment]) -> None:
    """Give the files of segments that are to go their new names, in this order; OSError: all have their old ones."""
    done: list[Segment] = []
    try:
        for segment in segments:
            segment.rename(DELETED_SUFFIX)
            done.append(segment)
    except OSError:
        rename_back(done)
        raise


def rename_back(segments: Sequence[Segment]) -> None:
    """They stay. OSError."""
    for segment in segments:
        segment.rename("")


def remove_later(log: Log, segments: list[Segment]) -> None:
    """The log has let go of these segments, which are renamed: have them removed after file.delete.delay.ms."""
    for segment in segments:
        segment.fd = -1
        try:
            log.producers.remove_snapshot(segment.base_offset)
        except OSError as error:
            log.storage_error(error)  # a file too many, no more
    if segments:
        remove_renamed_later(log, segments)


def remove_renamed_later(log: Log, segments: list[Segment]) -> None:
    """Have segments that are `.deleted` removed after file.delete.delay.ms."""

    def remove() -> None:
        for segment in segments:
            segment.delete()

    def done(error: OSError | None) -> None:
        if error is not None:
            log.storage_error(error)

    log.host.run(remove, done, log.config.file_delete_delay_ms)


def increment_log_start_offset(log: Log, offset: int) -> bool:
    """Forget everything below `offset`; whether that was news. Files go with the next `delete_old_segments`.

    Raises KafkaError OFFSET_OUT_OF_RANGE above the high watermark, KAFKA_STORAGE_ERROR.
    """
    if offset > log.high_watermark:
        error = KafkaError(Errors.OFFSET_OUT_OF_RANGE)
        error.add_note(f"log start offset {offset} of {log!r} would be above its high watermark {log.high_watermark}")
        raise error
    if offset <= log.log_start_offset:
        return False
    try:
        _set_log_start(log, offset)
    except OSError as error:
        raise log.storage_error(error) from error
    return True


def _set_log_start(log: Log, offset: int) -> None:
    log.log_start_offset = offset
    log.producers.on_log_start(offset)
    log.leader_epochs.truncate_from_start(offset)
    log.latest_epoch = log.leader_epochs.latest_epoch
