from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.files import FileSlice
from pybroker.storage.log import Log
from tests.storage.logs import append, batch, content, fill, make_log

ONE = len(batch())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Segments [0, 4), [4, 8), [8, 12) of batches of two records, one leader epoch a segment."""
    log = make_log(tmp_path, segment_bytes=2 * len(batch(2)))
    for epoch in range(3):
        for _ in range(2):
            append(log, batch(2), epoch=epoch)
    log.update_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize(("offset", "bases", "end", "epochs"), [
    (11, [0, 4, 8], 11, 3),
    (9, [0, 4, 8], 9, 3),
    (8, [0, 4, 8], 8, 2),
    (6, [0, 4], 6, 2),
    (4, [0, 4], 4, 1),
    (0, [0], 0, 0),
])  # fmt: skip
def test_what_is_left(log: Log, offset: int, bases: list[int], end: int, epochs: int) -> None:
    assert log.truncate_to(offset)
    assert (log.bases, log.log_end_offset, log.high_watermark) == (bases, end, end)
    assert len(log.leader_epochs.entries) == epochs
    assert log.size == sum(segment.path(".log").stat().st_size for segment in log.segments)
    assert log.size == len(batch(2)) * (offset // 2)
    assert append(log, batch(2), epoch=9).first_offset == end
    read = log.read(end, 1 << 20, max_offset=log.log_end_offset)
    assert content(read)[8:] == bytes(log.active.path(".log").read_bytes())[read.position + 8 :]


def test_truncating_at_or_above_the_end_forgets_epochs_without_records(log: Log) -> None:
    log.start_leader_epoch(7)
    assert not log.truncate_to(12)
    assert [epoch for epoch, _ in log.leader_epochs.entries] == [0, 1, 2]
    append(log, epoch=7)
    assert log.leader_epochs.entries[-1] == (7, 12)


def test_a_pending_slice_is_told(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    fill(log, 3, size=50_000)
    read = log.read(0, 1 << 20, max_offset=3)
    kept = log.read(0, 70_000, max_offset=1)
    assert isinstance(read.records, FileSlice)
    log.truncate_to(2)
    assert not read.records.intact
    assert len(content(kept)) > 50_000
    log.truncate_to(1)
    append(log, batch(size=50_000))
    fresh = log.read(0, 1 << 20, max_offset=2)
    assert isinstance(fresh.records, FileSlice)
    assert fresh.records.intact
    read.records.release()
    fresh.records.release()


def test_producers_are_what_they_were(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=3 * ONE)
    for sequence in range(8):
        append(log, batch(producer_id=1, producer_epoch=0, base_sequence=sequence))
    log.truncate_to(5)
    assert log.producers.entries[1].last_sequence == 4
    assert append(log, batch(producer_id=1, producer_epoch=0, base_sequence=4)).duplicate
    assert append(log, batch(producer_id=1, producer_epoch=0, base_sequence=5)).first_offset == 5


def test_an_open_transaction_is_open_again(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log)
    for sequence in range(3):
        append(log, batch(producer_id=1, producer_epoch=0, base_sequence=sequence, transactional=True))
    log.truncate_to(3)
    assert log.first_unstable_offset == 1
    log.truncate_to(1)
    assert log.first_unstable_offset is None


def test_start_over(log: Log) -> None:
    log.truncate_fully_and_start_at(100)
    assert (log.bases, log.log_start_offset, log.log_end_offset, log.high_watermark) == ([100], 100, 100, 100)
    assert log.leader_epochs.entries == []
    assert append(log).first_offset == 100
    assert [path.name for path in log.directory.glob("*.log")] == [f"{100:020d}.log"]


def test_start_over_at_the_same_base(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    fill(log, 3)
    log.truncate_fully_and_start_at(0)
    assert append(log).first_offset == 0


def test_below_the_first_segment(tmp_path: Path) -> None:
    log = make_log(tmp_path, start=50)
    fill(log, 3)
    assert log.truncate_to(20)
    assert (log.bases, log.log_end_offset, log.log_start_offset) == ([20], 20, 20)
