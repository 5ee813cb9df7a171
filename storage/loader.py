"""Loading a partition directory: after a clean stop from the ends of its files, after a crash through recovery.

After a clean stop no log is read but the few batches behind the last index entry, and the producers come from the
snapshot at the log's end. Producers are replayed from the log only where that snapshot is missing.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.header import LENGTH_AT, LOG_OVERHEAD, MIN_MESSAGE_OVERHEAD
from pybroker.storage.checkpoints import repair_hint
from pybroker.storage.directory import MOVE_MARK
from pybroker.storage.files import PageCache
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.meta_properties import WrongDirectory
from pybroker.storage.partition_metadata import CorruptPartitionMetadata, read_topic_id
from pybroker.storage.producer_recall import recall_batches
from pybroker.storage.producer_state import ProducerStates
from pybroker.storage.recovery import Repair, base_offset_of, is_damaged, replay, tidy, unflushed_from
from pybroker.storage.segment import LOG_SUFFIX, Segment

if TYPE_CHECKING:
    from pybroker.config import LogConfig

logger = logging.getLogger(__name__)


ALL_FLUSHED = 2**63 - 1  # the recovery point of a log that is known to be on the disk to its end


class Loading(NamedTuple):
    """What it takes to load a partition directory; may be handed to another process.

    `recovery_point` and `log_start_offset` are the checkpoints' (0 where they have none; ALL_FLUSHED after a clean
    stop), `clean` says that nothing need be scanned, `expiration_ms` is producer.id.expiration.ms.
    """

    directory: Path
    config: LogConfig
    clean: bool
    recovery_point: int
    log_start_offset: int
    expiration_ms: int
    now_ms: int


class Loaded(NamedTuple):
    """A partition directory in memory; the last segment is not active yet."""

    directory: Path
    topic_id: bytes | None
    segments: list[Segment]
    producers: ProducerStates
    leader_epochs: LeaderEpochCache
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    truncated_bytes: int


def load_partition(loading: Loading, cache: PageCache) -> Loaded:
    """Load, and repair what needs it.

    OSError when the disk fails, CorruptCheckpoint for an unreadable leader-epoch-checkpoint (both take the log
    directory offline), WrongDirectory for what stops the broker.
    """
    directory, config = loading.directory, loading.config
    try:
        topic_id = read_topic_id(directory)
    except CorruptPartitionMetadata as error:
        raise WrongDirectory(str(error)) from error
    names = tidy(directory, config, cache)
    if MOVE_MARK in names:  # the replica that it gave way to is gone
        (directory / MOVE_MARK).unlink()
    producers = ProducerStates(directory, expiration_ms=loading.expiration_ms)
    producers.find_snapshots(names)
    epochs = LeaderEpochCache.load(directory)
    bases = sorted(base_offset_of(name) or 0 for name in names if name.endswith(LOG_SUFFIX))
    segments = [Segment(directory, base, config, cache) for base in bases]

    truncated = 0
    bad = _to_scan(loading, segments)
    if bad:
        repair = Repair(directory, segments, producers, epochs, loading.log_start_offset, loading.now_ms)
        repair.run(bad)
        truncated = repair.truncated_bytes
    end = _log_end(segments)
    if end < loading.log_start_offset:
        end = _start_over(loading, segments, producers, epochs)
    if not segments:
        segments.append(_first_segment(loading, cache))
    start = max(loading.log_start_offset, segments[0].base_offset)
    epochs.truncate_from_end(end, save=False)  # of an empty log, nearly always: its leader is about to begin an epoch
    epochs.truncate_from_start(start)
    _load_producers(loading, segments, producers, start, end)
    point = min(loading.recovery_point, end)
    return Loaded(directory, topic_id, segments, producers, epochs, start, end, point, truncated)


def bytes_to_scan(directory: Path, recovery_point: int) -> int:
    """How much of a partition a recovery would have to read."""
    sizes = {base_offset_of(path.name) or 0: path.stat().st_size for path in directory.glob(f"*{LOG_SUFFIX}")}
    first = unflushed_from(list(sizes), recovery_point)
    return sum(size for base, size in sizes.items() if base >= first)


def _to_scan(loading: Loading, segments: list[Segment]) -> set[int]:
    """The base offsets of the segments that have to be scanned."""
    bases = [segment.base_offset for segment in segments]
    first = bases[-1] + 1 if bases else 0
    if not loading.clean:
        first = unflushed_from(bases, loading.recovery_point)
    return {segment.base_offset for segment in segments if segment.base_offset >= first or is_damaged(segment)}


def _log_end(segments: list[Segment]) -> int:
    """The offset behind the last whole batch; what follows it is cut off, for appends must not come to lie behind it.

    WrongDirectory where no batch can begin there, which after a clean stop means that something else wrote the file.
    """
    if not segments:
        return 0
    segment = segments[-1]
    entries = segment.offset_index.entries
    position = segment.offset_index.entry(entries - 1)[1] if entries else 0
    end = segment.base_offset
    try:
        for at, header in segment.walk(position):
            position, end = at + header.size, header.last_offset + 1
    except KafkaError as error:
        if not _is_cut_off(segment, position):
            path = segment.path(LOG_SUFFIX)
            raise WrongDirectory(
                f"{path} holds something else than batches from position {position} on, although the broker was "
                f"stopped cleanly. Remove .kafka_cleanshutdown from {path.parent.parent} to have the logs in it "
                f"recovered. {repair_hint(path.parent.parent)}"
            ) from error
    if position < segment.size:
        path = segment.path(LOG_SUFFIX)
        logger.warning("%s ends in the middle of a batch: %d bytes are cut off", path, segment.size - position)
        os.truncate(path, position)
        segment.size = position
    return end


def _is_cut_off(segment: Segment, position: int) -> bool:
    """Whether the size field at `position` announces more than the file holds."""
    head = segment.file.read(position + LENGTH_AT, LOG_OVERHEAD - LENGTH_AT, blocking=True)
    length = int.from_bytes(head, "big", signed=True)
    return length >= MIN_MESSAGE_OVERHEAD and position + LOG_OVERHEAD + length > segment.size


def _start_over(loading: Loading, segments: list[Segment], producers: ProducerStates, epochs: LeaderEpochCache) -> int:
    """The log ends below its start: what is there was deleted already, and the log goes on, empty, at its start."""
    start = loading.log_start_offset
    if segments:
        logger.warning("%s ends below its log start offset %d; it starts there anew", loading.directory, start)
    for segment in segments:
        segment.delete()
    segments.clear()
    epochs.clear()
    producers.truncate_fully_and_start_at(start)
    return start


def _first_segment(loading: Loading, cache: PageCache) -> Segment:
    segment = Segment.create(loading.directory, loading.log_start_offset, loading.config, cache, loading.now_ms)
    segment.close()
    return segment


def _load_producers(loading: Loading, segments: list[Segment], producers: ProducerStates, start: int, end: int) -> None:
    """Make the producers those at the log's end, with a snapshot there.

    Decided transactions are taken for replicated, as after a load from a snapshot, which does not know of them.
    """
    bases = [segment.base_offset for segment in segments]
    producers.remove_stray_snapshots(bases)
    if not producers.snapshots and loading.clean:
        # A directory of a time before there were snapshots: nothing is worth a scan of all of it.
        for offset in (*bases[-2:], end):
            producers.take_snapshot(offset)
        return
    loaded = producers.load_newest(start, end, loading.now_ms)
    if loaded < end:
        for number, segment in enumerate(segments):
            if number + 1 == len(segments) or segments[number + 1].base_offset > loaded:
                producers.take_snapshot(segment.base_offset)
                replay(segment, producers, max(segment.base_offset, loaded))
    producers.take_snapshot(end)
    producers.on_high_watermark(end)
    recall_batches(segments, producers, loading.now_ms)
