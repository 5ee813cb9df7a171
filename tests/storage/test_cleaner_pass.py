"""One pass of the cleaner: what survives, in which form, in which segments."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol.records import legacy
from pybroker.protocol.records.header import BatchHeader, read_header
from pybroker.protocol.records.record import EndTxnMarker, Record, assemble, build_batch, end_txn_batch
from pybroker.storage.cleaner.cleaning import clean
from pybroker.storage.cleaner.job import MOST_IN_GROUP, Failed, Message, Note
from pybroker.storage.files import FileSlice
from pybroker.storage.log import Log
from pybroker.storage.scanner import scan_batches
from tests.storage.compaction import batches, committed, job_of, last_values, records, reload, run_pass, swap_in
from tests.storage.logs import NOW, append, make_log

HOUR = 3_600_000
Pairs = Sequence[tuple[str, str | None]]


def compacted(tmp_path: Path, **settings: Any) -> Log:
    return make_log(tmp_path, cleanup_policy="compact", **settings)


def put(log: Log, pairs: Pairs, *, timestamp: int = NOW, **how: object) -> None:
    """One batch of these keys and values, a millisecond apart."""
    held = [
        Record(number, timestamp + number, key.encode(), None if value is None else value.encode(), ((b"h", b"v"),))
        for number, (key, value) in enumerate(pairs)
    ]
    append(log, memoryview(build_batch(held, **how)), from_client=False)  # type: ignore[arg-type]
    log.update_high_watermark(log.log_end_offset)


def values(log: Log) -> dict[int, tuple[str, str | None]]:
    return {
        offset: ((record.key or b"").decode(), None if record.value is None else record.value.decode())
        for offset, record in records(log).items()
    }


def headers(log: Log) -> list[BatchHeader]:
    return [header for header, _ in batches(log)]


@pytest.mark.parametrize("codec", range(5))
def test_the_last_of_each_key_stays_where_it_was(codec: int, tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")], codec=codec)
    put(log, [("b", "2")], codec=codec)
    put(log, [("d", "1"), ("e", "1")], codec=codec)
    log.roll()
    put(log, [("c", "2")])  # the active segment is left alone, and does not count
    before, old = records(log), headers(log)
    finished = run_pass(log, NOW)
    assert values(log) == {2: ("a", "2"), 3: ("c", "1"), 4: ("b", "2"), 5: ("d", "1"), 6: ("e", "1"), 7: ("c", "2")}
    assert records(log).items() <= before.items()  # keys, values, headers, timestamps
    first, *rest = headers(log)
    assert (first.base_offset, first.last_offset_delta, first.count, first.codec) == (0, 3, 2, codec)
    assert rest == old[1:]  # what loses nothing is copied as it is
    assert (finished.end_offset, finished.keys, finished.records_read, finished.records_kept) == (7, 5, 7, 5)
    assert log.log_end_offset == 8


def test_a_second_pass_looks_up_what_is_clean(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "1"), ("b", "1"), ("c", "1")])
    log.roll()
    run_pass(log, NOW)
    put(log, [("b", "2"), ("d", "1")])
    log.roll()
    assert run_pass(log, NOW).keys == 2
    assert values(log) == {0: ("a", "1"), 2: ("c", "1"), 3: ("b", "2"), 4: ("d", "1")}
    assert [header.count for header in headers(log)] == [2, 2]


def test_timestamps_and_order_of_append_time_survive(tmp_path: Path) -> None:
    log = compacted(tmp_path, message_timestamp_type="LogAppendTime")
    put(log, [("a", "1"), ("b", "1"), ("a", "2")])
    log.roll()
    before = records(log)
    run_pass(log, NOW)
    assert records(log) == {1: before[1], 2: before[2]}
    (header,) = headers(log)
    assert header.is_log_append_time and header.max_timestamp == NOW


def test_tombstones_through_time(tmp_path: Path) -> None:
    log = compacted(tmp_path, delete_retention_ms=HOUR)
    put(log, [("a", "1"), ("b", "1")])
    put(log, [("a", None), ("c", "1")], timestamp=NOW + 5)
    log.roll()
    before = records(log)
    run_pass(log, NOW)
    assert values(log) == {1: ("b", "1"), 2: ("a", None), 3: ("c", "1")}
    assert records(log).items() <= before.items()
    batch = headers(log)[1]
    assert (batch.has_delete_horizon, batch.base_timestamp, batch.max_timestamp) == (True, NOW + HOUR, NOW + 6)
    run_pass(log, NOW + HOUR - 1)
    assert 2 in values(log) and headers(log)[1].base_timestamp == NOW + HOUR  # the horizon stays as it is
    run_pass(log, NOW + HOUR)
    assert values(log) == {1: ("b", "1"), 3: ("c", "1")}
    assert records(log).items() <= before.items()
    put(log, [("a", "9")])
    log.roll()
    run_pass(log, NOW + 2 * HOUR)
    assert values(log) == {1: ("b", "1"), 3: ("c", "1"), 4: ("a", "9")}


def test_a_tombstone_without_retention_goes_in_the_second_pass(tmp_path: Path) -> None:
    log = compacted(tmp_path, delete_retention_ms=0)
    put(log, [("a", None), ("b", "1")])
    log.roll()
    run_pass(log, NOW)
    assert values(log) == {0: ("a", None), 1: ("b", "1")}
    run_pass(log, NOW)
    assert values(log) == {1: ("b", "1")}


def test_several_passes_where_the_table_is_too_small(tmp_path: Path) -> None:
    log = compacted(tmp_path, segment_bytes=400)
    for number in range(60):
        put(log, [(f"k{number % 40}", str(number)), (f"x{number % 7}", str(number))])
    log.roll()
    expected = last_values(records(log))
    passes = 0
    while log.cleaned_to < log.log_end_offset:
        finished = run_pass(log, NOW, memory=11 * 16)  # 6 keys
        assert finished.keys <= 10
        assert records(log).keys() >= set(range(finished.end_offset, log.log_end_offset))
        passes += 1
    assert passes > 5
    assert last_values(records(log)) == expected
    assert len(records(log)) == len(expected) == 47


def test_small_neighbours_become_one_segment(tmp_path: Path) -> None:
    log = compacted(tmp_path, segment_bytes=500, index_interval_bytes=100)
    for number in range(200):
        put(log, [(f"k{number % 3}", str(number))])
    log.roll()
    many = len(log.segments)
    held = log.read(0, 10_000, max_offset=log.log_end_offset, blocking=True)
    run_pass(log, NOW)
    assert len(held.records) > 0  # a reader's bytes are its own
    run_pass(log, NOW)
    while len(log.segments) > 2:
        count = len(log.segments)
        run_pass(log, NOW)
        assert count // MOST_IN_GROUP <= len(log.segments) < count
    assert many > 20
    assert values(log) == {197: ("k2", "197"), 198: ("k0", "198"), 199: ("k1", "199")}
    assert log.bases == [0, 200]
    assert log.read(5, 1000, max_offset=200, blocking=True).records  # a read inside the hole finds what follows
    again = reload(log.directory, log.config, clean_stop=False)
    assert again.bases == [0, 200] and records(again) == records(log)
    assert log.offset_for_timestamp(NOW) is not None
    names = {path.name for path in log.directory.iterdir() if not path.name.endswith(".deleted")}
    assert names == {
        *(f"{base:020d}{kind}" for base in (0, 200) for kind in (".log", ".index", ".timeindex")),
        f"{200:020d}.snapshot",
        "leader-epoch-checkpoint",
    }  # fmt: skip


def test_a_slice_of_a_segment_that_is_replaced_is_sent_to_its_end(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "x" * 100_000)])
    put(log, [("a", "2")])
    log.roll()
    read = log.read(0, 1 << 20, max_offset=2, blocking=True)
    assert isinstance(read.records, FileSlice)
    before = read.records.read()
    run_pass(log, NOW)
    assert values(log) == {1: ("a", "2")}
    assert read.records.intact and read.records.read() == before
    read.records.release()


def test_records_without_a_key_have_no_place(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    append(log, memoryview(build_batch([Record(0, NOW, None, b"v"), Record(1, NOW, b"k", b"v")])), from_client=False)
    log.update_high_watermark(2)
    log.roll()
    run_pass(log, NOW)
    assert list(records(log)) == [1]


def test_a_producers_last_sequence_is_kept_by_an_empty_batch(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for sequence in range(3):
        put(log, [("a", str(sequence))], producer_id=7, producer_epoch=1, base_sequence=sequence)
    put(log, [("a", "last")])
    log.roll()
    run_pass(log, NOW)
    assert values(log) == {3: ("a", "last")}
    empty, _ = headers(log)
    assert (empty.count, empty.base_sequence, empty.base_offset, empty.max_timestamp) == (0, 2, 2, NOW)
    again = reload(log.directory, log.config, clean_stop=False, now_ms=NOW)
    assert again.producers.entries[7].last_sequence == 2
    again.producers.entries.clear()  # once the producer is forgotten, so may the batch be
    run_pass(again, NOW)
    assert [header.count for header in headers(again)] == [1]


def test_the_last_offset_of_what_is_cleaned_is_kept(tmp_path: Path) -> None:
    log = compacted(tmp_path, delete_retention_ms=0)
    put(log, [("a", "1")])
    put(log, [("a", None)])
    log.roll()
    run_pass(log, NOW)
    run_pass(log, NOW)
    assert values(log) == {}
    assert [(header.last_offset, header.count) for header in headers(log)] == [(1, 0)]


def transaction(log: Log, pairs: Pairs, sequence: int, commit: bool) -> None:
    how = {"producer_id": 5, "producer_epoch": 0}
    put(log, pairs, base_sequence=sequence, transactional=True, **how)
    marker = end_txn_batch(EndTxnMarker(commit, 0), timestamp=NOW, **how)
    append(log, memoryview(marker), from_client=False)
    log.update_high_watermark(log.log_end_offset)


def test_transactions_and_their_markers(tmp_path: Path) -> None:
    log = compacted(tmp_path, delete_retention_ms=HOUR)
    transaction(log, [("a", "1"), ("b", "1")], 0, commit=True)  # 0, 1, marker 2
    transaction(log, [("a", "bad"), ("c", "bad")], 2, commit=False)  # 3, 4, marker 5
    put(log, [("b", "2"), ("z", "1")])  # 6, 7
    transaction(log, [("a", "2")], 4, commit=True)  # 8, marker 9
    log.roll()
    good = committed(log)
    run_pass(log, NOW)
    assert values(log) == {6: ("b", "2"), 7: ("z", "1"), 8: ("a", "2")}
    assert [(header.base_offset, header.has_delete_horizon) for header in headers(log) if header.is_control] == [
        (2, False), (5, False), (9, False),
    ]  # fmt: skip
    assert log.aborted_transactions(0, 10) == [(5, 3)]
    run_pass(log, NOW)  # nothing is left of the first two: their markers get a horizon
    assert [(header.base_offset, header.has_delete_horizon) for header in headers(log) if header.is_control] == [
        (2, True), (5, True), (9, False),
    ]  # fmt: skip
    assert log.aborted_transactions(0, 10) == []
    run_pass(log, NOW + HOUR)
    assert [header.base_offset for header in headers(log) if header.is_control] == [9]
    assert committed(log).items() <= good.items()
    again = reload(log.directory, log.config, clean_stop=False, now_ms=NOW)
    entry = again.producers.entries[5]
    assert (entry.last_sequence, entry.txn_first_offset) == (4, -1)


def test_what_is_undecided_is_not_cleaned(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "1")])
    log.roll()
    put(log, [("a", "2")], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll()
    put(log, [("a", "3")])
    log.roll()
    assert run_pass(log, NOW).end_offset == 1
    assert len(records(log)) == 3


def damage(log: Log, offset: int, at: int) -> None:
    """Flip a byte inside the batch that holds an offset."""
    segment = log.segments[log.segment_number(offset)]
    found = segment.locate(offset)
    assert found is not None
    byte = os.pread(segment.file.fd, 1, found.position + at)
    os.pwrite(segment.file.fd, bytes([byte[0] ^ 0xFF]), found.position + at)


def test_a_batch_whose_inside_is_damaged_is_carried_whole(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "1"), ("b", "1")])
    put(log, [("a", "2"), ("b", "2")])
    put(log, [("b", "3")])
    log.roll()
    damage(log, 2, 70)
    whole = [batch for header, batch in unchecked(log) if header.base_offset == 2]
    notes: list[Note] = []
    run_pass(log, NOW, notes=notes)
    assert [batch for header, batch in unchecked(log) if header.base_offset == 2] == whole
    assert [(header.base_offset, header.count) for header, _ in unchecked(log)] == [(0, 1), (2, 2), (4, 1)]
    assert [note.text for note in notes] == [
        f"{log.directory}: the batch at offset 2 is kept whole, as its checksum does not match"
    ]


def unchecked(log: Log) -> list[tuple[BatchHeader, bytes]]:
    found = []
    for segment in log.segments:
        found += [
            (header, bytes(batch)) for _, header, batch in scan_batches(segment.file.fd, 0, segment.size, check=False)
        ]
    return found


def test_an_inside_that_is_not_as_declared_is_carried_whole(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    good = build_batch([Record(0, NOW, b"a", b"1"), Record(1, NOW, b"b", b"1")])
    bad = assemble(read_header(good), bytes(good[61:-3]))  # a record is cut off, and the checksum right
    append(log, memoryview(bad), from_client=False)
    put(log, [("a", "2")])
    log.roll()
    notes: list[Note] = []
    run_pass(log, NOW, notes=notes)
    assert [header.count for header, _ in unchecked(log)] == [2, 1]
    assert len(notes) == 1 and "cut off" in notes[0].text


def test_what_is_no_batch_fails_the_pass_and_changes_nothing(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "1")])
    put(log, [("a", "2")])
    log.roll()
    damage(log, 1, 16)  # the magic
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}
    messages: list[Message] = []
    clean(job_of(log, NOW), messages.append)
    (failed,) = messages
    assert isinstance(failed, Failed) and failed.errno == 0 and "00000.log" in failed.why
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before


def test_a_full_disk_fails_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "1")])
    log.roll()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    messages: list[Message] = []
    clean(job_of(log, NOW), messages.append)
    assert isinstance(messages[0], Failed) and messages[0].errno == 28
    assert not list(log.directory.glob("*.cleaned"))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 3])
def test_old_formats(magic: int, codec: int, tmp_path: Path) -> None:
    log = compacted(tmp_path, delete_retention_ms=HOUR, segment_bytes=2000)
    pairs = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", None)]
    held = [Record(offset, NOW + offset if magic else -1, key, value) for offset, (key, value) in enumerate(pairs)]
    log.append_as_follower(memoryview(legacy.encode_set(held, magic=magic, codec=codec)))
    put(log, [("b", "2")])  # magic 2 in the same segment
    log.roll()
    before = records(log)
    run_pass(log, NOW)
    assert records(log) == {offset: before[offset] for offset in (2, 3, 4)}
    # A tombstone of an old format goes when its segment is older than the clean part's end by delete.retention.ms.
    old = (NOW - 2 * HOUR) * 1_000_000
    os.utime(log.segments[0].path(".log"), ns=(old, old))
    for number in range(2):
        put(log, [(f"x{number}", "1" * 1900)])  # too large to be joined with another
        log.roll()
        os.utime(log.segments[-2].path(".log"), ns=(NOW * 1_000_000, NOW * 1_000_000))
        run_pass(log, NOW)
        assert (3 in records(log)) == (number == 0)
    assert list(records(log)) == [2, 4, 5, 6]


def test_the_output_is_as_old_as_what_it_replaces(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "1")])
    log.roll()
    os.utime(log.segments[0].path(".log"), ns=(1_000_000_000, 1_000_000_000))
    run_pass(log, NOW)
    assert log.segments[0].last_modified_ms == 1000


def test_output_of_an_earlier_attempt_is_removed(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    put(log, [("a", "1")])
    log.roll()
    (log.directory / f"{0:020d}.log.cleaned").write_bytes(b"half")
    (log.directory / f"{5:020d}.txnindex.cleaned").write_bytes(b"half")
    run_pass(log, NOW)
    assert not list(log.directory.glob("*.cleaned"))
    assert values(log) == {0: ("a", "1")}


def test_the_throttle_bounds_reading_and_writing(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for number in range(20):
        put(log, [(f"k{number}", "v" * 10_000)])
    log.roll()
    began = time.monotonic()
    run_pass(log, NOW, rate=1_000_000.0)  # 0.2 MB are read twice and written once
    assert 0.2 < time.monotonic() - began < 5


def test_the_parents_end_stops_the_pass(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    for number in range(3):
        put(log, [(f"k{number}", "v" * 800_000)])
    log.roll()

    def gone() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        clean(job_of(log, NOW), lambda message: swap_in(log, message), gone)
    assert len(records(log)) == 3
