"""One partition's log (Kafka's UnifiedLog and LocalLog): segments, offsets, producers, leader epochs.

Everything here runs on the event loop's thread, except what is handed to the host's threads: fsync, the deletion of
files, and the writes themselves while the disk is slow or where they are large (append_queue). The common append, one
batch as every client of today sends it, is straight-line code over the batch's header: check, put base offset and
leader epoch into the batch where it lies, one write. Every other append is in log_append, reading in log_read,
searching by time in log_time, what goes in retention and log_truncate.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import (
    ATTRIBUTES_AT,
    BATCH_OVERHEAD,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    crc32c,
)
from pybroker.protocol.types import TopicPartition
from pybroker.storage import log_append, log_flush, log_read, log_time, log_truncate, retention
from pybroker.storage.append import AppendRules
from pybroker.storage.append_queue import LARGE_WRITE, SLOW_WRITE_SECONDS, AppendQueue
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.log_append import ASSIGN, AppendInfo
from pybroker.storage.log_host import LogHost
from pybroker.storage.log_read import LogRead
from pybroker.storage.producer_state import ProducerStates, last_sequence_of
from pybroker.storage.segment import Segment

if TYPE_CHECKING:
    from pybroker.config import LogConfig

__all__ = ["LATEST_PRODUCE", "AppendInfo", "Log"]

logger = logging.getLogger(__name__)

LATEST_PRODUCE = 13
_ZSTD_SINCE = 7  # Produce version
# A full disk only refuses; a file that was closed under a reading thread is not the disk's fault.
_HARMLESS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EBADF))


class Log:
    """One partition's log in one directory."""

    __slots__ = (
        "_header_only",
        "_header_only_bytes",
        "active",
        "bases",
        "cleaned_to",
        "config",
        "directory",
        "flush_at",
        "flush_wanted",
        "gone",
        "has_markers",
        "high_watermark",
        "host",
        "is_flushing",
        "last_flush_ms",
        "latest_epoch",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "queue",
        "recovery_point",
        "rules",
        "segments",
        "tail_offset",
        "tail_position",
        "topic_id",
        "topic_partition",
        "truncations",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: Path,
        config: LogConfig,
        host: LogHost,
        *,
        segments: list[Segment],
        producers: ProducerStates,
        leader_epochs: LeaderEpochCache,
        log_start_offset: int = 0,
        log_end_offset: int | None = None,
        recovery_point: int = 0,
        high_watermark: int = 0,
        topic_id: bytes | None = None,
    ) -> None:
        """A log of `segments`, ascending, which have been checked or recovered; a first one is made if there is none.

        Without `log_end_offset` it is read from the last segment (KafkaError CORRUPT_MESSAGE if that is broken).
        OSError when the disk fails.
        """
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        self.host = host
        self.producers = producers
        self.leader_epochs = leader_epochs
        if not segments:
            segments = [Segment.create(directory, log_start_offset, config, host.cache, host.clock.now_ms())]
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]  # parallel to segments, for bisection
        self.active = segments[-1]
        self.log_end_offset = self.active.next_offset() if log_end_offset is None else log_end_offset
        self.active.activate(config, host.clock.now_ms())
        self.log_start_offset = max(log_start_offset, segments[0].base_offset)
        self.recovery_point = min(recovery_point, self.log_end_offset)
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.last_flush_ms = host.clock.now_ms()
        self.is_flushing = False
        self.flush_wanted: list[tuple[int, Callable[[OSError | None], None] | None]] = []  # while one is under way
        self.cleaned_to = 0  # of a compacted log: the cleaner has dealt with everything below
        self.truncations = 0  # counts; what was planned before one is void after it
        self.tail_offset = -1  # first offset and position of the last batch appended, where readers mostly are
        self.tail_position = 0
        self.latest_epoch = leader_epochs.latest_epoch
        self.has_markers = False
        self.queue: AppendQueue | None = None  # while not None, every append goes there
        self.gone: Errors | None = None  # what they are told who come too late: its files have been let go of
        self.update_config(config)

    def __repr__(self) -> str:
        return f"Log({self.topic_partition.topic}-{self.topic_partition.partition})"

    # --- offsets -------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the earliest transaction that is open or whose marker is not below the high watermark."""
        return self.producers.first_unstable_offset

    @property
    def last_stable_offset(self) -> int:
        """What read_committed readers may see: everything below."""
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(self.high_watermark, unstable)

    def update_high_watermark(self, offset: int) -> None:
        """The replicas agree on everything below `offset` now."""
        self.high_watermark = offset
        if self.has_markers:
            self.producers.on_high_watermark(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch known at or below `epoch`, where it ends); (-1, -1) when it is not known."""
        return self.leader_epochs.end_offset_for_epoch(epoch, self.log_end_offset)

    def start_leader_epoch(self, epoch: int) -> None:
        """This replica leads from the log's end on. KafkaError KAFKA_STORAGE_ERROR."""
        if self.active.fd < 0:  # a truncation got stuck
            self.truncate_to(self.log_end_offset)
        self.assign_epoch(epoch, self.log_end_offset)

    # --- appending -----------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview,
        leader_epoch: int,
        *,
        version: int = LATEST_PRODUCE,
        from_client: bool = True,
    ) -> AppendInfo | Awaitable[AppendInfo]:
        """Give the batches their offsets, in place, and write them; `records` must be writable.

        `version` is the Produce request's. Without `from_client` (a coordinator's records, markers) contents are not
        judged. The answer is awaitable where it has to wait for the disk (flush.messages, a slow disk, a large batch)
        or takes long to convert; the order of appends is that of the calls all the same. It must not be cancelled, and
        `records` have to stay till then.

        Raises InvalidProduce and RecordsRejected (see append) and other KafkaErrors: MESSAGE_TOO_LARGE,
        CORRUPT_MESSAGE, INVALID_RECORD, those of ProducerStates.check, KAFKA_STORAGE_ERROR. The reason is a note.
        """
        if self.queue is not None:
            return self.queue.put(
                partial(log_append.append_in_turn, self, records, leader_epoch, version, from_client)
            )
        size = len(records)
        if from_client and version >= _ZSTD_SINCE and size >= BATCH_OVERHEAD:
            (
                base_offset, length, _, magic, crc, attributes, last_delta, _, max_timestamp, producer_id,
                producer_epoch, base_sequence, count,
            ) = HEADER.unpack_from(records)  # fmt: skip
            if (
                length == size - LOG_OVERHEAD
                and magic == MAGIC_V2
                and attributes in self._header_only
                and base_offset == 0
                and count == last_delta + 1
                and count > 0
                and size <= self._header_only_bytes
                and (producer_id < 0 or base_sequence >= 0)
                and crc32c(records[ATTRIBUTES_AT:]) == crc
            ):
                return self._append(
                    records, size, leader_epoch, last_delta, max_timestamp,
                    producer_id, producer_epoch, base_sequence, attributes,
                )  # fmt: skip
        return log_append.append_checked(self, records, leader_epoch, version, from_client)

    def _append(
        self,
        records: memoryview,
        size: int,
        leader_epoch: int,
        last_delta: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        attributes: int,
    ) -> AppendInfo | Awaitable[AppendInfo]:
        """Write one valid data batch."""
        if producer_id >= 0:
            transactional = attributes & TRANSACTIONAL_FLAG != 0
            last_sequence = last_sequence_of(base_sequence, last_delta)
            duplicate = self.producers.check(producer_id, producer_epoch, base_sequence, last_sequence, transactional)
            if duplicate is not None:
                _, _, first, last, timestamp = duplicate
                return AppendInfo(first, last, timestamp, 0, self.log_start_offset, timestamp, True)
        first = self.log_end_offset
        last = first + last_delta
        segment = self.active
        position = segment.size
        if position + size > segment.max_size or max_timestamp > segment.roll_after or last > segment.max_offset:
            segment = self.make_room(size, last, max_timestamp)
            position = segment.size
        if leader_epoch != self.latest_epoch:
            self.assign_epoch(leader_epoch, first)
        ASSIGN.pack_into(records, 0, first, size - LOG_OVERHEAD, leader_epoch)
        started = perf_counter()
        try:
            segment.append(records, size, last, max_timestamp)
        except OSError as error:
            raise self.storage_error(error) from error
        took = perf_counter() - started
        if took > SLOW_WRITE_SECONDS:
            self.host.writer(self).took(took)
        self.log_end_offset = last + 1
        self.tail_offset = first
        self.tail_position = position
        if producer_id >= 0:
            self.producers.update(
                producer_id, producer_epoch, base_sequence, last_sequence, first, last, max_timestamp, transactional
            )
        info = AppendInfo(first, last, max_timestamp, size, self.log_start_offset)
        return info if last < self.flush_at else log_flush.flush_then(self, info)

    def append_as_follower(self, records: memoryview) -> AppendInfo | Awaitable[AppendInfo]:
        """See log_append.append_as_follower; awaitable where the disk is slow or there is much to write."""
        if self.queue is None and len(records) > LARGE_WRITE and self.host.workshop is not None:
            self.queue = AppendQueue(self)
        if self.queue is not None:
            return self.queue.put(partial(log_append.append_as_follower_in_turn, self, records))
        return log_append.append_as_follower(self, records)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Batches of this leader epoch begin at `start_offset`. KafkaError KAFKA_STORAGE_ERROR."""
        try:
            self.leader_epochs.assign(epoch, start_offset)
        except OSError as error:
            raise self.storage_error(error) from error
        self.latest_epoch = self.leader_epochs.latest_epoch

    def storage_error(self, error: OSError) -> KafkaError:
        """The KafkaError for a failed file operation, which the host is told of unless it is harmless. Whoever comes a
        moment too late to a log that was let go of is no failure at all."""
        if self.gone is not None or (error.errno == errno.EBADF and self.active.fd < 0):
            return self.too_late()
        logger.error("%r in %s: %s", self, self.directory, error)
        if error.errno not in _HARMLESS:
            self.host.disk_failed(self, error)
        return KafkaError(Errors.KAFKA_STORAGE_ERROR)

    def too_late(self) -> KafkaError:
        """For those who find no files: they have been let go of (`release`), or a truncation got stuck."""
        return KafkaError(self.gone or Errors.KAFKA_STORAGE_ERROR)

    # --- rolling -------------------------------------------------------------------------------------------------

    def make_room(self, size: int, last_offset: int, max_timestamp: int, first_offset: int | None = None) -> Segment:
        """The segment for a batch of `size` bytes: the active one, or a new one if that has to be rolled.

        KafkaError RECORD_LIST_TOO_LARGE for more than a segment can hold, KAFKA_STORAGE_ERROR.
        """
        if size > self.config.segment_bytes:
            error = KafkaError(Errors.RECORD_LIST_TOO_LARGE)
            error.add_note(f"{size} bytes in one batch are more than segment.bytes={self.config.segment_bytes}")
            raise error
        active = self.active
        if active.should_roll(size, last_offset, max_timestamp, self.host.clock.now_ms()):
            self.roll(first_offset)
        return self.active

    def roll(self, base_offset: int | None = None) -> Segment:
        """Close the active segment and begin a new one at the log's end (or `base_offset` above it).

        An active segment that is empty and begins there stays. KafkaError KAFKA_STORAGE_ERROR when it can't be done;
        on a full disk the old segment is active as before.
        """
        base_offset = max(self.log_end_offset, base_offset or 0)
        old = self.active
        if base_offset == old.base_offset:
            return old
        try:
            self._check_whole()
            self.producers.take_snapshot(base_offset)
            new = Segment.create(self.directory, base_offset, self.config, self.host.cache, self.host.clock.now_ms())
            try:
                old.become_inactive()
            except OSError:
                new.delete()
                raise
        except OSError as error:
            raise self.storage_error(error) from error
        self.segments.append(new)
        self.bases.append(base_offset)
        self.active = new
        self.tail_offset = -1
        log_flush.flush_later(self, base_offset)
        return new

    # --- reading and searching -----------------------------------------------------------------------------------

    def segment_number(self, offset: int) -> int:
        """The number of the segment that would hold `offset`; -1 below the first."""
        return bisect_right(self.bases, offset) - 1

    def read(
        self, offset: int, max_bytes: int, *, max_offset: int, min_one: bool = True, blocking: bool = False
    ) -> LogRead:
        """See log_read.read."""
        return log_read.read(self, offset, max_bytes, max_offset, min_one, blocking)

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records in [start, end)."""
        return log_read.aborted_transactions(self, start, end)

    def aborted_in(self, read: LogRead) -> list[tuple[int, int]]:
        """The aborted transactions that a read_committed reader of `read` has to know."""
        return log_read.aborted_transactions(self, read.offset, log_read.upper_bound(self, read))

    def offset_for_timestamp(self, timestamp: int, *, blocking: bool = True) -> tuple[int, int, int] | None:
        """See log_time.offset_for_timestamp."""
        return log_time.offset_for_timestamp(self, timestamp, blocking)

    def max_timestamp_offset(self, *, blocking: bool = True) -> tuple[int, int, int] | None:
        """See log_time.max_timestamp_offset."""
        return log_time.max_timestamp_offset(self, blocking)

    def legacy_offsets_before(self, timestamp: int, max_num: int) -> list[int]:
        """See log_time.legacy_offsets_before."""
        return log_time.legacy_offsets_before(self, timestamp, max_num)

    # --- what goes ------------------------------------------------------------------------------------------------

    def delete_old_segments(self) -> int:
        """See retention.delete_old_segments."""
        return retention.delete_old_segments(self)

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """See retention.increment_log_start_offset."""
        return retention.increment_log_start_offset(self, offset)

    def truncate_to(self, offset: int) -> bool:
        """See log_truncate.truncate_to."""
        return log_truncate.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """See log_truncate.truncate_fully_and_start_at."""
        log_truncate.truncate_fully_and_start_at(self, offset, log_start_offset)

    # --- life ----------------------------------------------------------------------------------------------------

    def update_config(self, config: LogConfig) -> None:
        """Work by these settings from now on."""
        self.config = config
        self.rules = AppendRules(config, self.topic_partition)
        self._header_only = self.rules.header_only
        self._header_only_bytes = min(config.max_message_bytes, config.segment_bytes, LARGE_WRITE)
        self.flush_at = self.recovery_point + config.flush_messages - 1
        self.active.configure(config)

    @property
    def unflushed(self) -> int:
        """Offsets that may not be on the disk yet."""
        return self.log_end_offset - self.recovery_point

    def flushed(self, offset: int) -> None:
        """Everything below `offset` is on the disk."""
        if offset > self.recovery_point:
            self.recovery_point = offset
            self.set_flush_at()
        self.last_flush_ms = self.host.clock.now_ms()

    def set_flush_at(self) -> None:
        """The recovery point or flush.messages has changed."""
        self.flush_at = self.recovery_point + self.config.flush_messages - 1

    def flush(self, upto: int | None = None) -> None:
        """Force everything below `upto` (None: all) to the disk; blocks. OSError when the disk fails."""
        log_flush.flush(self, upto)

    def flush_later(self, done: Callable[[OSError | None], None] | None = None) -> None:
        """Force everything so far to the disk in a thread; then `done`, on the event loop."""
        log_flush.flush_later(self, self.log_end_offset, done)

    def moved(self, directory: Path) -> None:
        """The directory has been renamed."""
        self.directory = directory
        self.producers.moved(directory)
        self.leader_epochs.moved(directory)
        for segment in self.segments:
            segment.moved(directory)

    def relocated(self, directory: Path) -> None:
        """The files are others from now on, in another directory, byte for byte the same. OSError.

        What was flushed is known of finished segments only.
        """
        for segment in self.segments:
            segment.release()
        self.moved(directory)
        self.active.activate(self.config, self.host.clock.now_ms())
        self.truncations += 1  # a flush that is under way is one of the old files
        self.recovery_point = min(self.recovery_point, self.active.base_offset)
        self.set_flush_at()

    def close(self) -> None:
        """Write the producers' snapshot, finish the indexes, let go of all files; nothing is synced. OSError."""
        self._check_whole()
        self.producers.take_snapshot(self.log_end_offset)
        for segment in self.segments:
            segment.close()

    def _check_whole(self) -> None:
        if self.active.fd < 0:
            raise OSError(errno.EBADF, "the log's truncation was not finished")

    def release(self, why: Errors) -> None:
        """Let go of all files as they are: the log is deleted (NOT_LEADER_OR_FOLLOWER), or its disk has failed
        (KAFKA_STORAGE_ERROR). What is under way or waits, and whoever comes now, is told `why`."""
        self.gone = why
        if self.queue is not None:
            self.queue.refuse(why)
        for segment in self.segments:
            segment.release()
