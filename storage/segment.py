"""One segment of a log: `<base offset>.log` with its two indexes and its transaction index (Kafka's LogSegment).

The active segment is appended to, at known positions, so that a write that failed half-way is simply written over. Any
other opens its files when it is read, and may lose them again to others (OpenFiles).
Batches are never looked into here: their headers say all that indexes, rolling and reading need.

Index rules (Kafka's): an offset index entry is made for a batch when more than index.interval.bytes were appended
since the last entry, not counting the batch itself: (last offset of the batch, its position). A time index entry is
made along with each, and when the segment is closed: (largest timestamp so far, last offset of the batch that brought
it), unless the last entry's timestamp is as large.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import (
    BATCH_OVERHEAD,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MIN_MESSAGE_OVERHEAD,
    BatchHeader,
    read_header,
)
from pybroker.storage.files import UNLIMITED, FileSlice, OpenFile, PageCache
from pybroker.storage.index import OffsetIndex, TimeIndex
from pybroker.storage.scanner import BrokenBatch, scan_batches
from pybroker.storage.txn_index import TransactionIndex

if TYPE_CHECKING:
    from pybroker.config import LogConfig

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"

_MAX_RELATIVE_OFFSET = 2**31 - 1
_ALWAYS = -(1 << 63)
_STEP = Struct(">qiibIhi")  # of a header: base offset, length, -, magic, -, -, last offset delta
_LENGTH = Struct(">i")
_FIRST_LOOK = 512
_NEXT_LOOK = 4096
_MIN_TIMESTAMP = -1


class Batch(NamedTuple):
    """Where a batch lies in a segment; `base_offset` of a message of magic 0 or 1 is its (last) offset."""

    position: int
    size: int
    base_offset: int
    last_offset: int


class Written(NamedTuple):
    """What the indexes need to know of a batch among several that are written at once."""

    size: int
    last_offset: int
    max_timestamp: int


class Recovered(NamedTuple):
    """What a scan of the whole segment left of it."""

    next_offset: int
    valid_bytes: int
    truncated_bytes: int


class Segment:
    """One segment. Only the active one, made so by `activate`, can be appended to."""

    __slots__ = (
        "_cache",
        "_created_ms",
        "_file",
        "_first_timestamp",
        "_roll_ms",
        "_since_index",
        "_timestamps_read",
        "base_offset",
        "config",
        "directory",
        "fd",
        "max_offset",
        "max_size",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "roll_after",
        "size",
        "suffix",
        "time_index",
        "txn_index",
    )

    def __init__(
        self, directory: Path, base_offset: int, config: LogConfig, cache: PageCache, *, suffix: str = ""
    ) -> None:
        """The segment whose files are in `directory`; nothing is opened yet. OSError if there is no .log."""
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.config = config
        self._cache = cache
        self._file: OpenFile | None = None
        self.fd = -1  # of the active segment
        self.size = self.path(LOG_SUFFIX).stat().st_size
        index_bytes = config.segment_index_bytes
        self.offset_index = OffsetIndex(self.path(INDEX_SUFFIX), base_offset, index_bytes)
        self.time_index = TimeIndex(self.path(TIME_INDEX_SUFFIX), base_offset, index_bytes)
        self.txn_index = TransactionIndex(self.path(TXN_INDEX_SUFFIX))
        self._since_index = 0
        # Largest timestamp of the segment and the last offset of the batch that brought it.
        self.max_timestamp = _MIN_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._timestamps_read = False
        # Rolling, see `should_roll`: a batch within these three needs no closer look.
        self.max_size = config.segment_bytes
        self.max_offset = base_offset + _MAX_RELATIVE_OFFSET
        self.roll_after = UNLIMITED  # a timestamp
        self._roll_ms = UNLIMITED
        self._first_timestamp: int | None = None
        self._created_ms = 0

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, config: LogConfig, cache: PageCache, now_ms: int, *, suffix: str = ""
    ) -> Segment:
        """Make the files of a new active segment. OSError when the disk fails or is full: then there are none."""
        path = directory / f"{base_offset:020d}{LOG_SUFFIX}{suffix}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if config.preallocate:
                _preallocate(fd, config.segment_bytes)
            segment = cls(directory, base_offset, config, cache, suffix=suffix)
            segment.size = 0
            segment.offset_index.create()
            segment.time_index.create()
            segment._timestamps_read = True
            segment.activate(config, now_ms)
            return segment
        except OSError:
            for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                (directory / f"{base_offset:020d}{kind}{suffix}").unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def path(self, kind: str) -> Path:
        """The path of the segment's file of this kind (".log" ...)."""
        return self.directory / f"{self.base_offset:020d}{kind}{self.suffix}"

    @property
    def file(self) -> OpenFile:
        """The log file, opened when needed. OSError when it can't be.

        Unless the segment is active, the file may be closed by the next look at another segment: who keeps it any
        longer has to retain it.
        """
        file = self._file
        if file is None:
            file = self._file = OpenFile(self.path(LOG_SUFFIX), self._cache)
        if self.fd < 0:
            self._cache.open_files.used(self)
        return file

    @property
    def in_use(self) -> bool:
        """Whether a slice or a flush holds the log file, too."""
        return self._file is not None and self._file.is_shared

    # --- appending -----------------------------------------------------------------------------------------------

    def activate(self, config: LogConfig, now_ms: int) -> None:
        """Get ready for appends, under `config` from now on. Reads the largest timestamp and the first batch's."""
        self.fd = self.file.fd
        self._cache.open_files.forget(self)
        self._cache.touched(self.file.number, self.size, 1)
        self.read_timestamps()
        self._created_ms = now_ms
        if self._first_timestamp is None and self.size:
            self._first_timestamp = self._read_first_timestamp()
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        """Take over changed settings."""
        self.config = config
        self.max_size = config.segment_bytes
        # What must be compacted in time must not stay in the active segment for longer, as in Kafka.
        most_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms
        jitter = min(config.segment_jitter_ms, most_ms)
        self._roll_ms = most_ms - (int.from_bytes(os.urandom(8)) % jitter if jitter > 0 else 0)
        self._set_roll_after()

    def append(self, records: memoryview, size: int, last_offset: int, max_timestamp: int) -> int:
        """Write one batch behind the last; its position.

        On OSError nothing has changed but bytes behind `size`, which the next append writes over.
        """
        position = self.size
        if os.pwrite(self.fd, records, position) != size:
            self._write_rest(records, position)
        if self._since_index > self.config.index_interval_bytes:
            self._index(last_offset, max_timestamp, position)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        self._since_index += size
        self.size = position + size
        if not position:
            self._first_timestamp = max_timestamp
            self._set_roll_after()
        return position

    def write(self, records: memoryview, batches: int) -> None:
        """The first half of appending so many batches, which `records` consists of. It may be done in a thread.

        On OSError nothing has changed but bytes behind `size`; without `written` it has not happened either.
        """
        position = self.size
        if os.pwrite(self.fd, records, position) != len(records):
            self._write_rest(records, position)
        if self._since_index + len(records) > self.config.index_interval_bytes:
            self.offset_index.reserve(batches)
            self.time_index.reserve(batches)

    def written(self, batches: list[Written]) -> int:
        """The second half: these batches are in the segment. The position of the first."""
        position = start = self.size
        interval = self.config.index_interval_bytes
        for size, last_offset, max_timestamp in batches:
            if self._since_index > interval:
                self._index(last_offset, max_timestamp, position)
            if max_timestamp > self.max_timestamp:
                self.max_timestamp = max_timestamp
                self.max_timestamp_offset = last_offset
            self._since_index += size
            position += size
        self.size = position
        if not start:
            self._first_timestamp = batches[0].max_timestamp
            self._set_roll_after()
        return start

    def append_all(self, records: memoryview, batches: list[Written]) -> int:
        """Both halves."""
        self.write(records, len(batches))
        return self.written(batches)

    def _write_rest(self, records: memoryview, position: int) -> None:
        """A write was short: the disk is full, or was interrupted. Goes on until all is written or it fails."""
        written = 0
        while written < len(records):
            written += os.pwrite(self.fd, records[written:], position + written)

    def _index(self, last_offset: int, max_timestamp: int, position: int) -> None:
        """Make the index entries for the batch at `position`; OSError, with nothing changed, when the disk is full."""
        offset_index, time_index = self.offset_index, self.time_index
        if offset_index.is_full or time_index.is_full:
            return
        offset_index.reserve()
        time_index.reserve()
        offset_index.append(last_offset, position)
        if max_timestamp > self.max_timestamp:
            time_index.append(max_timestamp, last_offset)
        else:
            time_index.append(self.max_timestamp, self.max_timestamp_offset)
        self._since_index = 0
        self._cache.touched(self.file.number, position, 1)
        if offset_index.is_full or time_index.is_full:
            self.roll_after = _ALWAYS

    # --- rolling -------------------------------------------------------------------------------------------------

    def should_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a batch of `size` bytes must go into a new segment: for its size, age, offset or a full index."""
        if self.size > self.max_size - size or last_offset > self.max_offset:
            return True
        if self.offset_index.is_full or self.time_index.is_full:
            return True
        first = self._first_timestamp
        waited = now_ms - self._created_ms if first is None or first < 0 else max_timestamp - first
        return self.size > 0 and waited > self._roll_ms

    def _set_roll_after(self) -> None:
        first = self._first_timestamp
        if self.offset_index.is_full or self.time_index.is_full or (first is not None and first < 0):
            self.roll_after = _ALWAYS
        else:
            self.roll_after = UNLIMITED if first is None else first + self._roll_ms

    def become_inactive(self) -> None:
        """No more appends: note the largest timestamp, trim the indexes. After an OSError it is active as before."""
        self._close_time_index()
        self.offset_index.trim()
        self.time_index.trim()
        fd = self.file.fd
        if os.fstat(fd).st_size != self.size:  # preallocated, or a write came to nothing half-way
            os.ftruncate(fd, self.size)
        self.fd = -1
        self._cache.open_files.used(self)
        self.roll_after = UNLIMITED

    def _close_time_index(self) -> None:
        if self.max_timestamp > self.time_index.last()[0]:
            self.time_index.reserve()
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)

    # --- timestamps ----------------------------------------------------------------------------------------------

    def read_timestamps(self) -> None:
        """Learn the largest timestamp from the time index, if not known yet."""
        if not self._timestamps_read:
            if self.fd < 0:
                self._cache.open_files.used(self)
            self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
            self._timestamps_read = True

    @property
    def largest_timestamp(self) -> int:
        """Of all batches, in ms; the time of the last write where no batch has a timestamp."""
        self.read_timestamps()
        return self.max_timestamp if self.max_timestamp >= 0 else self.last_modified_ms

    @property
    def last_modified_ms(self) -> int:
        """When the file was last written to, in ms."""
        return self.path(LOG_SUFFIX).stat().st_mtime_ns // 1_000_000

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, in ms, -1 if there is none; reads it from the file, once."""
        if self._first_timestamp is None:
            self._first_timestamp = self._read_first_timestamp()
        return -1 if self._first_timestamp is None else self._first_timestamp

    def _read_first_timestamp(self) -> int | None:
        first = next(self.walk(0), None)
        return None if first is None else first[1].max_timestamp

    # --- reading -------------------------------------------------------------------------------------------------

    def locate(self, offset: int, *, blocking: bool = True) -> Batch | None:
        """The first batch that ends at or above `offset`; None when there is none.

        Raises WouldBlock, KafkaError CORRUPT_MESSAGE for bytes that are no batch.
        """
        for position, chunk, at in self._headers(self.offset_index.lookup(offset), blocking):
            base_offset, length, _, magic, _, _, delta = _STEP.unpack_from(chunk, at)
            last_offset = base_offset + delta if magic == MAGIC_V2 else base_offset
            if last_offset >= offset:
                return Batch(position, length + LOG_OVERHEAD, base_offset, last_offset)
        return None

    def walk(self, position: int, *, blocking: bool = True) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` on. Raises as `locate`."""
        for at_file, chunk, at in self._headers(position, blocking):
            yield at_file, read_header(chunk, at)

    def _headers(self, position: int, blocking: bool) -> Iterator[tuple[int, bytes | bytearray, int]]:
        """(position, buffer, index there) of every batch header from `position` on, by small reads."""
        end = self.size
        look, start = _FIRST_LOOK, position
        chunk: bytes | bytearray = b""
        while position < end:
            at = position - start
            if at + BATCH_OVERHEAD > len(chunk):
                start, at = position, 0
                chunk = self.file.read(position, min(look, end - position), blocking=blocking)
                look = _NEXT_LOOK
                if len(chunk) < BATCH_OVERHEAD:  # a small message of an old format at the end
                    chunk = chunk.ljust(BATCH_OVERHEAD, b"\0")
            length = _LENGTH.unpack_from(chunk, at + LENGTH_AT)[0]
            if length < MIN_MESSAGE_OVERHEAD or chunk[at + MAGIC_AT] > MAGIC_V2:
                raise KafkaError(Errors.CORRUPT_MESSAGE, f"no batch at position {position} of {self.path(LOG_SUFFIX)}")
            size = length + LOG_OVERHEAD
            if position + size > end:
                return
            yield position, chunk, at
            position += size

    def slice(self, position: int, length: int) -> FileSlice:
        """A slice to be sent, whose holder must release it."""
        return FileSlice(self.file, position, length)

    def next_offset(self) -> int:
        """The offset behind the last batch, from the last index entry on. KafkaError CORRUPT_MESSAGE, see `locate`."""
        entries = self.offset_index.entries
        position = self.offset_index.entry(entries - 1)[1] if entries else 0
        offset = self.base_offset
        for _, header in self.walk(position):
            offset = header.last_offset + 1
        return offset

    # --- repairing -----------------------------------------------------------------------------------------------

    def check_indexes(self) -> None:
        """CorruptIndex or CorruptTransactionIndex unless the indexes can be right, by their sizes and last entries."""
        self._cache.open_files.used(self)
        self.offset_index.check()
        self.time_index.check()
        self.txn_index.check()

    def recover(self, on_batch: Callable[[int, BatchHeader, memoryview], None] | None = None) -> Recovered:
        """Check every batch, cut the file at the first bad one, write both indexes anew.

        `on_batch(position, header, batch)` sees every good batch, the view being valid during the call. Leaves the
        segment inactive, its indexes trimmed. Blocks; OSError when the disk fails.
        """
        self.offset_index.reset()
        self.time_index.reset()
        self._timestamps_read = True
        self.max_timestamp, self.max_timestamp_offset = _MIN_TIMESTAMP, self.base_offset
        self._since_index = 0
        valid, next_offset, size = 0, self.base_offset, self.size
        try:
            for position, header, batch in scan_batches(self.file.fd, 0, size):
                last_offset = header.last_offset
                if not 0 <= last_offset - self.base_offset <= _MAX_RELATIVE_OFFSET:
                    break
                if self._since_index > self.config.index_interval_bytes:
                    self._index(last_offset, header.max_timestamp, position)
                if header.max_timestamp > self.max_timestamp:
                    self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, last_offset
                self._since_index += len(batch)
                if on_batch is not None:
                    on_batch(position, header, batch)
                valid, next_offset = position + len(batch), last_offset + 1
        except BrokenBatch:
            pass  # the rest of the file is cut off, and the caller told so
        if valid < size:
            os.ftruncate(self.file.fd, valid)
            os.fsync(self.file.fd)
            self.size = valid
        self.become_inactive()
        return Recovered(next_offset, valid, size - valid)

    def truncate_to(self, offset: int) -> int:
        """Drop every batch that ends at or above `offset`; the bytes dropped. The segment has to be activated again.

        Slices of the dropped part are no longer intact. After an OSError it can be repeated.
        """
        first = self.locate(offset)
        self.fd = -1
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self._since_index = 0
        self._timestamps_read = False
        if first is None:
            return 0
        file, dropped = self.file, self.size - first.position
        file.limit = min(file.limit, first.position)
        os.ftruncate(file.fd, first.position)
        self.size = first.position
        if not self.size:
            self._first_timestamp = None
        self._reopen()
        return dropped

    def _reopen(self) -> None:
        """A new OpenFile, whose slices are good; those of the old one know where it was cut."""
        self._cache.open_files.forget(self)
        if self._file is not None:
            self._file.release()
            self._file = None
            self.fd = -1

    # --- life ----------------------------------------------------------------------------------------------------

    def flush_indexes(self) -> None:
        """Make the indexes durable; blocks, for a thread. OSError when the disk fails or a file is gone."""
        self.offset_index.flush()
        self.time_index.flush()
        self.txn_index.flush()

    def close(self) -> None:
        """Finish the indexes of an active segment and let go of all files."""
        if self.fd >= 0:
            self.become_inactive()
        self.release()

    def release(self) -> None:
        """Let go of all files as they are; they are opened again when needed."""
        self.offset_index.close()
        self.time_index.close()
        self._reopen()

    def rename(self, suffix: str) -> None:
        """Give all files another suffix (".deleted"); what is not there is passed over. OSError: none has it."""
        stem = f"{self.directory}/{self.base_offset:020d}"
        old, done = self.suffix, []
        try:
            for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                with suppress(FileNotFoundError):
                    os.rename(f"{stem}{kind}{old}", f"{stem}{kind}{suffix}")
                    done.append(kind)
        except OSError:
            for kind in done:
                os.rename(f"{stem}{kind}{suffix}", f"{stem}{kind}{old}")
            raise
        self.suffix = suffix
        self._set_paths()

    def moved(self, directory: Path) -> None:
        """The partition directory has a new name."""
        self.directory = directory
        self._set_paths()

    def _set_paths(self) -> None:
        self.offset_index.path = self.path(INDEX_SUFFIX)
        self.time_index.path = self.path(TIME_INDEX_SUFFIX)
        self.txn_index.renamed(self.path(TXN_INDEX_SUFFIX))

    def delete(self) -> None:
        """Remove all files; what is still being sent goes on."""
        self.release()
        for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            self.path(kind).unlink(missing_ok=True)


def _preallocate(fd: int, size: int) -> None:
    """Give the file its disk space at once, or its size at least where the system can't. OSError: the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)
