"""Everything that can be wrong with one partition directory, found in one walk over each of its logs.

May run in a worker process: what goes in and comes out is small. Memory is bounded by the walker's window, and the
number of findings by MOST_FINDINGS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records import legacy
from pybroker.protocol.records.header import MAGIC_V2, BatchHeader
from pybroker.protocol.records.record import iter_records, read_end_txn_marker
from pybroker.storage.checkpoints import CorruptCheckpoint
from pybroker.storage.leader_epochs import FILE_NAME as EPOCHS_FILE
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.partition_metadata import CorruptPartitionMetadata, read_topic_id
from pybroker.storage.producer_snapshot import CorruptSnapshot, decode_snapshot
from pybroker.storage.producer_state import SNAPSHOT_SUFFIX
from pybroker.storage.recovery import CLEANED_SUFFIX, SWAP_SUFFIX, base_offset_of
from pybroker.storage.scanner import BrokenBatch
from pybroker.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from pybroker.storage.tools.dump_indexes import offset_entries, time_entries
from pybroker.storage.tools.dump_log import MOST_INSIDE
from pybroker.storage.tools.walker import read_batch, walk_log
from pybroker.storage.txn_index import CorruptTransactionIndex, TransactionIndex

MOST_FINDINGS = 200
_NO_SEGMENT = 1 << 62
_MAX_RELATIVE = 2**31 - 1

_Reader = Callable[[Path], Iterator[tuple[int, int]]]


class Finding(NamedTuple):
    """What is wrong with a file. An `error` is damage; a `note` passes by itself at the next start, losing nothing
    that was flushed."""

    path: Path
    severity: Literal["error", "note"]
    text: str


class Job(NamedTuple):
    """What to look at. Without a clean stop, what lies above the recovery point is what recovery is for."""

    directory: Path
    clean: bool
    recovery_point: int
    deep: bool


class Report(NamedTuple):
    """A partition that was looked at; `end` is its log end offset, -1 where it has no log."""

    directory: Path
    findings: list[Finding]
    start: int
    end: int
    batches: int
    bytes: int


def verify_partition(job: Job) -> Report:
    """Look at one partition directory. A file that can't be read is an error found, too."""
    return _Partition(job).run()


class _Partition:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._findings: list[Finding] = []
        self._epochs: LeaderEpochCache | None = None
        self._batches = self._bytes = 0

    def run(self) -> Report:
        directory = self._job.directory
        start = end = -1
        try:
            names = set(os.listdir(directory))
            self._small_files(names)
            bases = sorted(base_offset_of(name) or 0 for name in names if name.endswith(LOG_SUFFIX))
            start = end = bases[0] if bases else -1
            unflushed = max((base for base in bases if base <= self._job.recovery_point), default=0)
            for base, following in pairwise([*bases, _NO_SEGMENT]):
                severe = self._job.clean or base < unflushed
                end = _Segment(self, base, following, end, severe).run()
        except OSError as error:
            self.found(directory, str(error))
        return Report(directory, self._findings[:MOST_FINDINGS], start, end, self._batches, self._bytes)

    @property
    def job(self) -> Job:
        return self._job

    @property
    def epochs(self) -> LeaderEpochCache | None:
        """None where there are none, or they can't be read."""
        return self._epochs

    def found(self, path: Path, text: str, *, severe: bool = True) -> None:
        self._findings.append(Finding(path, "error" if severe else "note", text))

    def count(self, size: int) -> None:
        self._batches += 1
        self._bytes += size

    def _small_files(self, names: set[str]) -> None:
        directory = self._job.directory
        try:
            read_topic_id(directory)
        except CorruptPartitionMetadata as error:
            self.found(directory / "partition.metadata", str(error))
        try:
            epochs = LeaderEpochCache.load(directory)
            self._epochs = epochs if epochs.entries else None
            if any(later.start_offset <= earlier.start_offset for earlier, later in pairwise(epochs.entries)):
                self.found(directory / EPOCHS_FILE, "the start offsets do not ascend")
        except CorruptCheckpoint as error:
            self.found(directory / EPOCHS_FILE, str(error))
        for name in sorted(names):
            self._name(directory / name, names)

    def _name(self, path: Path, names: set[str]) -> None:
        name = path.name
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX)):
            self.found(path, "a leftover, which goes at the next start", severe=False)
        elif name.endswith(SWAP_SUFFIX):
            self.found(path, "an interrupted swap, which is finished at the next start", severe=False)
        elif name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)):
            if f"{name.partition('.')[0]}{LOG_SUFFIX}" not in names:
                self.found(path, "has no log; it goes at the next start", severe=False)
        elif name.endswith(SNAPSHOT_SUFFIX):
            try:
                list(decode_snapshot(path.read_bytes()))
            except CorruptSnapshot as error:
                self.found(path, f"{error}; it is written anew from the log", severe=self._job.clean)


class _Segment:
    """One walk over a log, its indexes going along."""

    def __init__(self, partition: _Partition, base: int, following: int, end: int, severe: bool) -> None:
        self._partition = partition
        self._base = base
        self._following = following  # base offset of the next segment
        self._last = max(end, base) - 1  # offset of the last record so far
        self._severe = severe
        stem = f"{base:020d}"
        directory = partition.job.directory
        self._log = directory / f"{stem}{LOG_SUFFIX}"
        self._index = directory / f"{stem}{INDEX_SUFFIX}"
        self._times = directory / f"{stem}{TIME_INDEX_SUFFIX}"
        self._txns = directory / f"{stem}{TXN_INDEX_SUFFIX}"
        self._largest = -1
        self._epoch_told = False

    def run(self) -> int:
        """The offset behind the last record."""
        offsets = self._entries(self._index, offset_entries, 8)
        times = self._entries(self._times, time_entries, 12)
        markers = self._aborts()
        wanted, time_wanted = next(offsets, None), next(times, None)
        descriptor = os.open(self._log, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            for position, header, valid in walk_log(descriptor, size):
                self._batch(descriptor, position, header, valid)
                wanted = self._check_offset(wanted, offsets, position, header)
                time_wanted = self._check_time(time_wanted, times, header)
                if header.is_control and header.last_offset in markers:
                    self._check_marker(descriptor, position, header, markers.pop(header.last_offset))
        except BrokenBatch as broken:
            self._found(self._log, str(broken))
        else:
            if wanted is not None:
                self._found(self._index, f"the entry of offset {self._base + wanted[0]} lies behind the end of the log")
            if time_wanted is not None:
                self._found(self._times, f"the entry of offset {self._base + time_wanted[1]} is not in the log")
        finally:
            os.close(descriptor)
        return self._last + 1

    def _found(self, path: Path, text: str) -> None:
        # Recovery writes indexes anew and cuts the last log off; behind damage in an earlier one it deletes the rest.
        earlier_log = path == self._log and self._following != _NO_SEGMENT
        self._partition.found(path, text, severe=self._severe or earlier_log)

    def _batch(self, descriptor: int, position: int, header: BatchHeader, valid: bool) -> None:
        self._partition.count(header.size)
        where = f"position {position}: "
        if not valid:
            self._found(self._log, f"{where}a batch's checksum does not match")
        first = header.base_offset if header.magic >= MAGIC_V2 else header.last_offset
        if header.last_offset <= self._last or first <= self._last:
            self._found(self._log, f"{where}offset {first} follows offset {self._last}")
        if header.last_offset >= self._following:
            self._found(self._log, f"{where}offset {header.last_offset} belongs to the next segment")
        if header.last_offset - self._base > _MAX_RELATIVE:
            self._found(self._log, f"{where}offset {header.last_offset} is too far above the base offset")
        self._last = max(self._last, header.last_offset)
        self._check_epoch(header, where)
        if self._partition.job.deep and valid:
            self._look_inside(descriptor, position, header, where)

    def _check_epoch(self, header: BatchHeader, where: str) -> None:
        epochs = self._partition.epochs
        if epochs is None or header.leader_epoch < 0 or self._epoch_told:
            return
        known = epochs.epoch_for_offset(header.base_offset)
        # None below the first epoch, which begins where the log does after DeleteRecords, maybe within a batch.
        if known not in (None, header.leader_epoch):
            self._epoch_told = True
            self._found(
                self._log,
                f"{where}the batch is of leader epoch {header.leader_epoch}, {EPOCHS_FILE} says {known}",
            )

    def _look_inside(self, descriptor: int, position: int, header: BatchHeader, where: str) -> None:
        if header.size > MOST_INSIDE:
            self._found(self._log, f"{where}a batch of {header.size} bytes is too large to be looked into")
            return
        batch = read_batch(descriptor, position, header.size)
        reader = iter_records if header.magic >= MAGIC_V2 else legacy.iter_records
        try:
            for record in reader(batch, header, MOST_INSIDE):
                if record.offset > header.last_offset:
                    self._found(self._log, f"{where}record {record.offset} lies behind the batch's last offset")
                    return
        except (KafkaError, ValueError) as error:
            self._found(self._log, f"{where}{error}")

    def _entries(self, path: Path, read: _Reader, entry_size: int) -> Iterator[tuple[int, int]]:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            self._found(path, "is missing; it is rebuilt from the log")
            return
        if size % entry_size:
            self._found(path, f"{size} bytes are no multiple of {entry_size}")
        last = (-1, -1)
        for entry in read(path):
            if entry[0] <= last[0] or entry[1] < last[1]:
                self._found(path, f"entry {entry} follows {last}: they do not ascend")
                return
            last = entry
            yield entry

    def _check_offset(
        self, wanted: tuple[int, int] | None, entries: Iterator[tuple[int, int]], position: int, header: BatchHeader
    ) -> tuple[int, int] | None:
        """The index entry that is expected next."""
        while wanted is not None and wanted[1] <= position:
            offset = self._base + wanted[0]
            if wanted[1] < position:
                self._found(self._index, f"no batch begins at position {wanted[1]}, the entry of offset {offset}")
            elif header.last_offset > offset:
                self._found(self._index, f"the entry of offset {offset} leads to offset {header.last_offset}")
            wanted = next(entries, None)
        return wanted

    def _check_time(
        self, wanted: tuple[int, int] | None, entries: Iterator[tuple[int, int]], header: BatchHeader
    ) -> tuple[int, int] | None:
        """The time index entry that is expected next: no timestamp up to its offset is larger, and one is as large."""
        through = max(self._largest, header.max_timestamp)
        while wanted is not None and self._base + wanted[1] <= header.last_offset:
            timestamp, offset = wanted[0], self._base + wanted[1]
            before = through if offset == header.last_offset else self._largest
            if not before <= timestamp <= through:
                self._found(self._times, f"the entry of offset {offset} says {timestamp}, the log says {through}")
            wanted = next(entries, None)
        self._largest = through
        return wanted

    def _aborts(self) -> dict[int, int]:
        """Offset of the marker → producer id, as the transaction index has them."""
        index = TransactionIndex(self._txns)
        try:
            index.check()
        except CorruptTransactionIndex as error:
            self._found(self._txns, str(error))
            return {}
        return {entry.last_offset: entry.producer_id for entry in index.entries}

    def _check_marker(self, descriptor: int, position: int, header: BatchHeader, producer_id: int) -> None:
        try:
            record = next(iter(iter_records(read_batch(descriptor, position, header.size), header)), None)
            marker = None if record is None else read_end_txn_marker(record)
        except KafkaError as error:
            self._found(self._log, f"position {position}: {error}")
            return
        if header.producer_id != producer_id or (marker is not None and marker.commit):
            self._found(self._txns, f"offset {header.last_offset} is no ABORT marker of producer {producer_id}")
