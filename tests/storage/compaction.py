"""Passes of the cleaner over a log, in this process, and what the log holds before and after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pybroker.config import LogConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.records import legacy
from pybroker.protocol.records.header import BatchHeader
from pybroker.protocol.records.record import Record, iter_records, read_end_txn_marker
from pybroker.protocol.types import TopicPartition
from pybroker.storage.cleaner import swap
from pybroker.storage.cleaner.choice import examine
from pybroker.storage.cleaner.cleaning import clean
from pybroker.storage.cleaner.job import Cleaned, Finished, Job, LastRecord, Message, Note
from pybroker.storage.files import PageCache
from pybroker.storage.loader import Loading, load_partition
from pybroker.storage.log import Log
from pybroker.storage.log_host import InlineHost, LogHost
from pybroker.storage.scanner import scan_batches

MEMORY = 1 << 20


def job_of(log: Log, now_ms: int, *, memory: int = MEMORY, load_factor: float = 0.9, rate: float = 1e300) -> Job:
    """The job that the cleaner would give now."""
    target = examine(log, now_ms)
    count = log.segment_number(target.first_uncleanable)
    last = {
        entry.producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
        for entry in log.producers.entries.values()
    }
    return Job(
        log.directory, log.config, log.bases[:count], log.bases[count:], target.first_dirty, target.first_uncleanable,
        last, now_ms, memory, load_factor, rate,
    )  # fmt: skip


def swap_in(log: Log, message: Message) -> None:
    """What the broker does with a group that is cleaned."""
    if isinstance(message, Cleaned):
        number = log.segment_number(message.bases[0])
        old = log.segments[number : number + len(message.bases)]
        assert [segment.base_offset for segment in old] == message.bases
        swap.replace(log, old)


def run_pass(log: Log, now_ms: int, *, notes: list[Note] | None = None, **how: object) -> Finished:
    """One whole pass, over everything if nothing is dirty; the log goes on with the result."""
    if log.cleaned_to >= examine(log, now_ms).first_uncleanable:
        log.cleaned_to = 0
    last: list[Message] = []

    def report(message: Message) -> None:
        swap_in(log, message)
        if isinstance(message, Note) and notes is not None:
            notes.append(message)
        last.append(message)

    clean(job_of(log, now_ms, **how), report)  # type: ignore[arg-type]
    finished = last[-1]
    assert isinstance(finished, Finished), finished
    log.cleaned_to = max(log.cleaned_to, finished.end_offset)
    return finished


def batches(log: Log) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch of the log."""
    for segment in log.segments:
        for _, header, batch in scan_batches(segment.file.fd, 0, segment.size):
            yield header, bytes(batch)


def records(log: Log) -> dict[int, Record]:
    """Every data record that is there, by offset, whether committed or not."""
    found: dict[int, Record] = {}
    for header, batch in batches(log):
        if header.is_control:
            continue
        held = iter_records(batch, header) if header.magic >= 2 else legacy.iter_records(batch, header)
        for record in held:
            assert record.offset not in found
            found[record.offset] = record
    return found


def committed(log: Log) -> dict[int, Record]:
    """What a read_committed consumer gets from the whole log, by the transaction index and the markers."""
    aborted = sorted(log.aborted_transactions(log.log_start_offset, log.log_end_offset), key=lambda entry: entry[1])
    active: set[int] = set()
    found: dict[int, Record] = {}
    for header, batch in batches(log):
        while aborted and aborted[0][1] <= header.last_offset:
            active.add(aborted.pop(0)[0])
        if header.is_control:
            for record in iter_records(batch, header):
                marker = read_end_txn_marker(record)
                assert marker is not None
                if not marker.commit:
                    active.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in active):
            found.update((record.offset, record) for record in iter_records(batch, header))
    return found


def reload(directory: Path, config: LogConfig, *, clean_stop: bool, at: LogHost | None = None, now_ms: int = 0) -> Log:
    """Open a directory again, after a clean stop or through recovery."""
    loading = Loading(directory, config, clean_stop, 2**63 - 1 if clean_stop else 0, 0, 2**62, now_ms)
    loaded = load_partition(loading, PageCache())
    topic, _, partition = directory.name.rpartition("-")
    log = Log(
        TopicPartition(topic, int(partition)), directory, config, at or InlineHost(ManualClock(now_ms)),
        segments=loaded.segments, producers=loaded.producers, leader_epochs=loaded.leader_epochs,
        log_start_offset=loaded.log_start_offset, log_end_offset=loaded.log_end_offset,
        recovery_point=loaded.recovery_point,
    )  # fmt: skip
    log.update_high_watermark(log.log_end_offset)
    return log


def last_values(found: dict[int, Record]) -> dict[bytes, Record]:
    """The last record of each key."""
    last: dict[bytes, Record] = {}
    for offset in sorted(found):
        record = found[offset]
        if record.key is not None:
            last[record.key] = record
    return last
