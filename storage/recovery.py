"""Bringing a partition directory into order after a crash, as Kafka's LogLoader and LogSegment.recover do.

1. `tidy`: leftovers go (`.deleted`, `.cleaned`, indexes without a log), an interrupted swap is finished.
2. `Repair`: every segment that holds the recovery point or lies above it is scanned, and any whose index files cannot
   be right. Indexes, transaction index, producer snapshots and leader epochs are written anew from its batches. At the
   first bad batch the segment is cut off and every later segment is deleted, as Kafka does: what lies behind a damaged
   batch can be told neither complete nor in order.

What is left is a directory like after a clean stop, so that the work may as well be done by another process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.header import BatchHeader
from pybroker.storage.files import PageCache
from pybroker.storage.index import CorruptIndex
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.producer_state import ProducerStates
from pybroker.storage.scanner import BrokenBatch, scan_batches
from pybroker.storage.segment import DELETED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment
from pybroker.storage.txn_index import AbortedTransaction, CorruptTransactionIndex

if TYPE_CHECKING:
    from pybroker.config import LogConfig

logger = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ".txnindex")


def base_offset_of(name: str) -> int | None:
    """The offset that a file's name begins with, None for files that have none."""
    stem = name.split(".", 1)[0]
    return int(stem) if stem.isdecimal() else None


def tidy(directory: Path, config: LogConfig, cache: PageCache) -> list[str]:
    """Remove leftovers and finish an interrupted swap; the names of the files that remain. OSError."""
    names = os.listdir(directory)
    if any(name.endswith(_LEFTOVER_SUFFIXES) for name in names):
        swaps = _remove_leftovers(directory, names)
        if swaps:
            _finish_swap(directory, swaps, config, cache)
        names = os.listdir(directory)
    logs = {base_offset_of(name) for name in names if name.endswith(LOG_SUFFIX)}
    orphans = [name for name in names if name.endswith(_INDEX_SUFFIXES) and base_offset_of(name) not in logs]
    for name in orphans:
        logger.warning("%s has no log file and is removed", directory / name)
        (directory / name).unlink()
    return [name for name in names if name not in orphans] if orphans else names


def _remove_leftovers(directory: Path, names: Iterable[str]) -> list[str]:
    """Remove what a crash left of deleting and cleaning; the `.swap` files that are to take their place.

    A `.swap` behind a `.cleaned` file belongs to a replacement that was not complete: it goes too.
    """
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    incomplete_from = min((base_offset_of(name) or 0 for name in cleaned), default=None)
    swaps = []
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            if incomplete_from is None or (base_offset_of(name) or 0) < incomplete_from:
                swaps.append(name)
                continue
        elif not name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX)):
            continue
        logger.info("%s is left from an interrupted operation and is removed", directory / name)
        (directory / name).unlink()
    return swaps


def _finish_swap(directory: Path, swaps: list[str], config: LogConfig, cache: PageCache) -> None:
    """Put the finished output of a replacement in the place of the segments that it covers."""
    first, end = None, 0
    for name in swaps:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            base = base_offset_of(name) or 0
            segment = Segment(directory, base, config, cache, suffix=SWAP_SUFFIX)
            end = max(end, segment.next_offset(), base + 1)  # an empty one replaces its own predecessor at least
            segment.release()
            first = base if first is None else min(first, base)
    for name in os.listdir(directory):
        base_offset = base_offset_of(name)
        replaced = name.endswith((LOG_SUFFIX, *_INDEX_SUFFIXES)) and base_offset is not None
        if replaced and first is not None and first <= (base_offset or 0) < end:
            (directory / name).unlink()
    for name in swaps:
        logger.info("%s takes its place after an interrupted swap", directory / name)
        os.replace(directory / name, directory / name.removesuffix(SWAP_SUFFIX))


def is_damaged(segment: Segment) -> bool:
    """Whether a segment's index files cannot be right, by their sizes and last entries."""
    try:
        segment.check_indexes()
        _check_positions(segment)
    except (CorruptIndex, CorruptTransactionIndex) as error:
        logger.warning("%s; the indexes are rebuilt from the log", error)
        return True
    return False


def _check_positions(segment: Segment) -> None:
    """CorruptIndex if the last index entry points behind the end of the log file."""
    index = segment.offset_index
    if index.entries:
        offset, position = index.entry(index.entries - 1)
        if position >= segment.size:
            raise CorruptIndex(f"{index.path}: the entry of offset {offset} points behind the end of the log")


def unflushed_from(bases: list[int], recovery_point: int) -> int:
    """The base offset from which on segments are scanned after a crash: that of the segment with the recovery point."""
    return max((base for base in bases if base <= recovery_point), default=0)


class Repair:
    """The repair of one partition's segments, in order. OSError when the disk fails."""

    def __init__(
        self,
        directory: Path,
        segments: list[Segment],
        producers: ProducerStates,
        epochs: LeaderEpochCache,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        self.segments = segments
        self.truncated_bytes = 0
        self._directory = directory
        self._producers = producers
        self._epochs = epochs
        self._log_start = log_start_offset
        self._now_ms = now_ms
        self._segment = segments[0]

    def run(self, bases: set[int]) -> None:
        """Scan the segments with these base offsets; producers end up as at the log's end."""
        first = min(bases)
        loaded = self._producers.load_newest(self._log_start, first, self._now_ms)
        for segment in [segment for segment in self.segments if segment.base_offset < first]:
            replay(segment, self._producers, loaded, first)
        for number, segment in enumerate(self.segments):
            if segment.base_offset < first:
                continue
            self._producers.take_snapshot(segment.base_offset)
            if segment.base_offset not in bases:
                replay(segment, self._producers, segment.base_offset)
            elif self._scan(segment):
                self._delete_from(number + 1)
                break

    def _scan(self, segment: Segment) -> bool:
        """Scan one segment; whether something was cut off."""
        self._segment = segment
        segment.txn_index.reset()
        outcome = segment.recover(self._on_batch)
        segment.release()
        if outcome.truncated_bytes:
            self.truncated_bytes += outcome.truncated_bytes
            logger.warning(
                "%s held no valid batch from position %d on; %d bytes are cut off, the log goes on at offset %d",
                segment.path(LOG_SUFFIX),
                outcome.valid_bytes,
                outcome.truncated_bytes,
                outcome.next_offset,
            )
        return outcome.truncated_bytes > 0

    def _on_batch(self, position: int, header: BatchHeader, batch: memoryview) -> None:
        if header.leader_epoch > self._epochs.latest_epoch:
            self._epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id < 0:
            return
        try:
            done = self._producers.replay(header, batch)
        except KafkaError as error:
            raise BrokenBatch(position, str(error)) from error
        if done is not None and done.aborted:
            self._segment.txn_index.append(
                AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, done.last_stable_offset)
            )

    def _delete_from(self, number: int) -> None:
        for segment in self.segments[number:]:
            logger.warning("%s follows the cut and is deleted", segment.path(LOG_SUFFIX))
            self.truncated_bytes += segment.size
            segment.delete()
            self._producers.remove_snapshot(segment.base_offset)
        del self.segments[number:]


def replay(segment: Segment, producers: ProducerStates, start: int, end: int | None = None) -> None:
    """Take over the producers of a segment's batches in [start, end), which were valid when they were written.

    Stops where the file has no whole batch. OSError when the disk fails.
    """
    try:
        first = segment.locate(start)
    except KafkaError:
        return
    if first is None:
        return
    try:
        for _, header, batch in scan_batches(segment.file.fd, first.position, segment.size, check=False):
            if end is not None and header.base_offset >= end:
                return
            if header.last_offset >= start:
                producers.replay(header, batch)
    except BrokenBatch as broken:
        logger.warning("%s: %s", segment.path(LOG_SUFFIX), broken)
