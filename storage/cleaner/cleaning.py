"""One pass over one log, in a worker process (Kafka's Cleaner): nothing here touches the log's own files.

1. The map: keys and last offsets of the records in [first dirty, first uncleanable), until it is full.
2. The copy: all segments up to where the map ends, in groups that become one segment each. A group's output,
   `.cleaned`, is durable before it is reported; the broker puts it in place while the next group is read.

Old output that an earlier attempt left is removed first: recovery would take it for a sign that a later replacement was
not complete.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from pybroker.protocol.clock import SystemClock
from pybroker.protocol.errors import KafkaError
from pybroker.protocol.rate import TokenBucket
from pybroker.protocol.records.header import BatchHeader, Buffer, read_header
from pybroker.storage.cleaner.job import Cleaned, Failed, Finished, Job, Message, Note, group
from pybroker.storage.cleaner.offset_map import OffsetMap
from pybroker.storage.cleaner.record_scan import Damaged
from pybroker.storage.cleaner.survivors import Survivors, keys_of
from pybroker.storage.cleaner.swap import remove_output
from pybroker.storage.cleaner.transactions import SeenTransactions
from pybroker.storage.files import PageCache
from pybroker.storage.recovery import CLEANED_SUFFIX
from pybroker.storage.scanner import BrokenBatch, scan_batches
from pybroker.storage.segment import LOG_SUFFIX, TXN_INDEX_SUFFIX, Segment, Written
from pybroker.storage.txn_index import AbortedTransaction, CorruptTransactionIndex, TransactionIndex

_WRITE_BYTES = 1 << 20
_CHECK_BYTES = 1 << 20  # how much is read between looks at the throttle and the parent
_BYTES_OF_KEY = 4  # dirty bytes that certainly go with one key, compressed or not too well
_BURST_SECONDS = 0.3

Report = Callable[[Message], None]


def clean(job: Job, report: Report, alive: Callable[[], None] = lambda: None) -> None:
    """Do the pass; `report` gets its messages, the last one Finished or Failed.

    `alive` is called now and then, and raises when nobody waits for the result any more.
    """
    try:
        remove_output(job.directory)
        report(_Pass(job, report, alive).run())
    except OSError as error:
        report(Failed(error.errno or 0, f"{error}"))
    except (BrokenBatch, CorruptTransactionIndex, KafkaError) as error:
        report(Failed(0, str(error)))


class _Pass:
    def __init__(self, job: Job, report: Report, alive: Callable[[], None]) -> None:
        self._job = job
        self._report = report
        self._alive = alive
        self._cache = PageCache()
        rate = job.bytes_per_second
        self._throttle = TokenBucket(rate, rate * _BURST_SECONDS, SystemClock())
        self._passed = 0  # bytes since the last look
        self._segments = [Segment(job.directory, base, job.config, self._cache) for base in job.bases]
        self._ends = dict(zip(job.bases, [*job.bases[1:], job.first_uncleanable], strict=True))
        self._told = 0
        self._bytes_read = self._bytes_kept = 0

    def run(self) -> Finished:
        began = time.monotonic()
        job = self._job
        aborted = list(self._aborted())
        dirty = [segment for segment in self._segments if self._ends[segment.base_offset] > job.first_dirty]
        most_keys = sum(segment.size for segment in dirty) // _BYTES_OF_KEY
        offsets = OffsetMap(job.memory, job.load_factor, most_keys)
        decided = SeenTransactions(entry for entry in aborted if entry.last_offset >= job.first_dirty)
        for segment in dirty:
            if not self._note_keys(segment, offsets, decided):
                break
            offsets.latest_offset = max(offsets.latest_offset, self._ends[segment.base_offset] - 1)
        end = offsets.latest_offset + 1
        legacy_horizon = self._legacy_horizon()
        transactions = SeenTransactions(aborted)
        survivors = Survivors(job, offsets, transactions, self._damaged)
        covered = [segment for segment in self._segments if segment.base_offset < end]
        for segments in group(covered, job.config, job.first_uncleanable):
            self._copy(segments, survivors, transactions, legacy_horizon)
        return Finished(
            end, survivors.records_read, survivors.records_kept, self._bytes_read, self._bytes_kept, offsets.size,
            time.monotonic() - began,
        )  # fmt: skip

    def _aborted(self) -> Iterator[AbortedTransaction]:
        for base in (*self._job.bases, *self._job.later):
            yield from TransactionIndex(self._job.directory / f"{base:020d}{TXN_INDEX_SUFFIX}").entries

    def _legacy_horizon(self) -> int:
        """Tombstones of old formats go from segments that were last written before: when the clean part ends, less
        delete.retention.ms."""
        clean = [segment for segment in self._segments if segment.base_offset < self._job.first_dirty]
        return clean[-1].last_modified_ms - self._job.config.delete_retention_ms if clean else 0

    # --- the map -------------------------------------------------------------------------------------------------

    def _note_keys(self, segment: Segment, offsets: OffsetMap, transactions: SeenTransactions) -> bool:
        """Note the keys of a segment's dirty records; False when the map is full."""
        first_dirty = self._job.first_dirty
        start = 0
        if segment.base_offset < first_dirty:
            first = segment.locate(first_dirty)
            start = segment.size if first is None else first.position
        for header, batch in self._batches(segment, start):
            if header.is_control:
                transactions.is_obsolete(header, batch)
            elif not transactions.is_aborted(header) and not self._note_batch(header, batch, offsets):
                return False
            offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
        return True

    def _note_batch(self, header: BatchHeader, batch: memoryview, offsets: OffsetMap) -> bool:
        try:
            keys, at, tombstones = keys_of(header, batch)
        except (Damaged, KafkaError) as error:
            self._damaged(header, str(error))
            return True
        if at and at[0] < self._job.first_dirty:
            skipped = sum(offset < self._job.first_dirty for offset in at)
            keys, at = keys[skipped:], at[skipped:]
            tombstones = [number - skipped for number in tombstones if number >= skipped]
        return offsets.put(keys, at, tombstones)

    # --- the copy ------------------------------------------------------------------------------------------------

    def _copy(
        self, segments: list[Segment], survivors: Survivors, transactions: SeenTransactions, legacy_horizon: int
    ) -> None:
        """Write what survives of a group of segments, and report it."""
        modified_ns = segments[-1].path(LOG_SUFFIX).stat().st_mtime_ns
        output = _Output(self._job, segments[0].base_offset, self._cache)
        try:
            for segment in segments:
                survivors.retain_legacy_tombstones = segment.last_modified_ms > legacy_horizon
                for header, batch in self._batches(segment, 0):
                    kept = survivors.of(header, batch)
                    if kept is not None:
                        self._pass(len(kept))
                        self._bytes_kept += len(kept)
                        output.add(kept, header if kept is batch else read_header(kept))
                    if transactions.still_needed:
                        output.add_aborted(transactions.still_needed)
                self._bytes_read += segment.size
                segment.release()
            output.finish(modified_ns)
        except BaseException:
            output.abandon()
            raise
        self._report(Cleaned([segment.base_offset for segment in segments]))

    # --- both ----------------------------------------------------------------------------------------------------

    def _batches(self, segment: Segment, start: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch of a segment. BrokenBatch where something else lies in it."""
        try:
            for _, header, batch in scan_batches(segment.file.fd, start, segment.size, check=False):
                self._pass(header.size)
                yield header, batch
        except BrokenBatch as broken:
            raise BrokenBatch(broken.position, f"{broken.why} in {segment.path(LOG_SUFFIX)}") from None

    def _pass(self, size: int) -> None:
        """So many bytes were read or written: wait if they were too many, stop if nobody waits."""
        self._passed += size
        if self._passed >= min(_CHECK_BYTES, self._throttle.burst):
            wait_ms = self._throttle.take(self._passed)
            self._passed = 0
            self._alive()
            if wait_ms:
                time.sleep(wait_ms / 1000)
                self._alive()

    def _damaged(self, header: BatchHeader, why: str) -> None:
        self._told += 1
        if self._told == 1:
            text = f"{self._job.directory}: the batch at offset {header.base_offset} is kept whole, as {why}"
            self._report(Note(logging.WARNING, text))


class _Output:
    """The segment that a group becomes, `.cleaned`."""

    def __init__(self, job: Job, base_offset: int, cache: PageCache) -> None:
        self._segment = Segment.create(job.directory, base_offset, job.config, cache, job.now_ms, suffix=CLEANED_SUFFIX)
        self._buffer = bytearray()
        self._written: list[Written] = []

    def add(self, batch: Buffer, header: BatchHeader) -> None:
        """Append a batch."""
        self._buffer += batch
        self._written.append(Written(len(batch), header.last_offset, header.max_timestamp))
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()

    def add_aborted(self, transactions: list[AbortedTransaction]) -> None:
        """Take over, from the list, the transactions whose ABORT marker has been added and is still needed."""
        for entry in transactions:
            self._segment.txn_index.append(entry)
        transactions.clear()

    def _write(self) -> None:
        if self._written:
            self._segment.append_all(memoryview(self._buffer), self._written)
        self._buffer = bytearray()
        self._written = []

    def finish(self, modified_ns: int) -> None:
        """Make it durable; it is as old as what it replaces."""
        self._write()
        self._segment.become_inactive()
        os.fsync(self._segment.file.fd)
        self._segment.flush_indexes()
        os.utime(self._segment.path(LOG_SUFFIX), ns=(modified_ns, modified_ns))
        self._segment.release()

    def abandon(self) -> None:
        with suppress(OSError):
            self._segment.delete()
