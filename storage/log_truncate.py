"""Cutting off a log's end: followers do so when the leader's log is another.

A file operation that fails, as on a full disk, leaves the log as it was, or cut off at a segment's end, or without an
open active segment; it can be repeated then, and a crash loses nothing but what was to go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pybroker.storage.producer_recall import recall_batches
from pybroker.storage.recovery import replay
from pybroker.storage.retention import remove_later, rename_away, rename_back
from pybroker.storage.segment import Segment

if TYPE_CHECKING:
    from pybroker.storage.log import Log

logger = logging.getLogger(__name__)


def truncate_to(log: Log, offset: int) -> bool:
    """Drop all batches that end at or above `offset`; whether there were any.

    Blocks for as long as the producers' state has to be read again from the log. KafkaError KAFKA_STORAGE_ERROR: where
    it got stuck half-way, appends fail until it has been repeated.
    """
    if offset < 0:
        raise ValueError(f"cannot truncate {log!r} to offset {offset}")
    try:
        if offset >= log.log_end_offset and log.active.fd >= 0:
            # An epoch may have begun at the end without a record of it.
            log.leader_epochs.truncate_from_end(log.log_end_offset)
            log.latest_epoch = log.leader_epochs.latest_epoch
            return False
        if offset < log.bases[0]:
            _begin_anew(log, offset, offset)
            return True
        _truncate(log, min(offset, log.log_end_offset))
    except OSError as error:
        raise log.storage_error(error) from error
    logger.info("%r is truncated to offset %d", log, offset)
    return True


def _truncate(log: Log, offset: int) -> None:
    number = log.segment_number(offset)
    gone = log.segments[number + 1 :]
    if gone:
        rename_away(gone[::-1])  # the last first: what a crash leaves behind has no hole
        end = log.bases[number + 1]
        del log.segments[number + 1 :], log.bases[number + 1 :]
        log.active = log.segments[number]
        _ends_at(log, end)
        remove_later(log, gone)
    active = log.active
    if active.fd < 0:
        active.read_timestamps()
    active.truncate_to(offset)
    _ends_at(log, offset)
    try:
        log.leader_epochs.truncate_from_end(offset)
    finally:
        log.latest_epoch = log.leader_epochs.latest_epoch
    _reload_producers(log)
    active.activate(log.config, log.host.clock.now_ms())


def _ends_at(log: Log, offset: int) -> None:
    """The segments go no further."""
    log.log_end_offset = offset
    log.tail_offset = -1
    log.truncations += 1
    log.log_start_offset = min(log.log_start_offset, offset)
    log.high_watermark = min(log.high_watermark, offset)
    if offset < log.recovery_point:
        log.recovery_point = offset
        log.host.recovery_point_back()
    log.cleaned_to = min(log.cleaned_to, offset)
    log.set_flush_at()


def _reload_producers(log: Log) -> None:
    """Make the producers what they were at the log's end: a snapshot, the batches behind it, and before it what a
    producer may send again: the follower that truncates may lead next."""
    end, now_ms = log.log_end_offset, log.host.clock.now_ms()
    loaded = log.producers.load_newest(log.log_start_offset, end, now_ms)
    for segment in log.segments[max(0, log.segment_number(loaded)) :]:
        replay(segment, log.producers, loaded, end)
    recall_batches(log.segments, log.producers, now_ms)
    log.has_markers = True  # what was replayed may hold markers above the high watermark


def truncate_fully_and_start_at(log: Log, offset: int, log_start_offset: int | None = None) -> None:
    """Drop everything; the log goes on, empty, at `offset`. KafkaError KAFKA_STORAGE_ERROR."""
    try:
        _begin_anew(log, offset, offset if log_start_offset is None else log_start_offset)
    except OSError as error:
        raise log.storage_error(error) from error


def _begin_anew(log: Log, offset: int, log_start_offset: int) -> None:
    gone = log.segments[:]
    rename_away(gone[::-1])
    try:
        new = Segment.create(log.directory, offset, log.config, log.host.cache, log.host.clock.now_ms())
    except OSError:
        rename_back(gone)
        raise
    log.active = new
    log.segments[:] = [new]
    log.bases[:] = [offset]
    _ends_at(log, offset)
    log.log_start_offset = log.high_watermark = log_start_offset
    remove_later(log, gone)
    try:
        log.producers.truncate_fully_and_start_at(offset)
        log.leader_epochs.clear()
    finally:
        log.latest_epoch = log.leader_epochs.latest_epoch
    logger.info("%r is emptied and goes on at offset %d", log, offset)
