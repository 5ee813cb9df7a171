"""A restart, clean or not, knows what a producer may resend: its last five batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.protocol.records.record import Record, build_batch
from pybroker.storage.log import Log
from pybroker.storage.producer_recall import RECENT_MS
from tests.storage.test_recovery import NOW, load, open_log


def write(log: Log, sequences: range, *, producer_id: int = 7, producer_epoch: int = 0, timestamp: int = NOW) -> None:
    """Batches of two records from these sequences on."""
    for sequence in sequences:
        records = [Record(at, timestamp, b"k", b"v" * 60) for at in range(2)]
        batch = build_batch(
            records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
        )  # fmt: skip
        log.append_as_leader(memoryview(batch), 0)


def known(directory: Path, clean: bool, producer_id: int = 7) -> list[tuple[int, int]]:
    """(base sequence, first offset) of the batches known after a load."""
    entry = load(directory, clean=clean).producers.entries[producer_id]
    return [(batch.base_sequence, batch.first_offset) for batch in entry.batches]


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_five_are_known(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    write(log, range(0, 16, 2))
    assert len(log.segments) > 1
    log.close()
    assert known(log.directory, clean) == [(6, 6), (8, 8), (10, 10), (12, 12), (14, 14)]


@pytest.mark.parametrize("clean", [True, False])
def test_producers_side_by_side(tmp_path: Path, clean: bool) -> None:
    """One in a new epoch, one with a batch or two, one from long ago."""
    log = open_log(tmp_path / "t-0", clean=True)
    write(log, range(0, 4, 2), producer_id=1)
    write(log, range(0, 6, 2), producer_id=2, timestamp=NOW - RECENT_MS)
    write(log, range(0, 6, 2), producer_id=3)
    write(log, range(0, 4, 2), producer_id=3, producer_epoch=1)
    log.close()
    assert known(log.directory, clean, 1) == [(0, 0), (2, 2)]
    assert known(log.directory, True, 2) == [(4, 8)]
    assert known(log.directory, clean, 3) == [(0, 16), (2, 18)]


def test_a_truncated_log_knows_them(tmp_path: Path) -> None:
    """A follower truncates, and may lead next: its producers send to it what the old leader did not answer."""
    log = open_log(tmp_path / "t-0", clean=True)
    now = log.host.clock.now_ms()
    write(log, range(0, 16, 2), timestamp=now)
    log.close()
    again = open_log(log.directory, clean=True)
    write(again, range(16, 18, 2), timestamp=now)
    again.truncate_to(16)
    assert [batch.base_sequence for batch in again.producers.entries[7].batches] == [6, 8, 10, 12, 14]


def test_damage_is_left_to_readers(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    write(log, range(0, 16, 2))
    log.close()
    first = log.directory / f"{log.bases[-2]:020d}.log"
    first.write_bytes(first.read_bytes()[:16] + b"\x77" + first.read_bytes()[17:])
    assert known(log.directory, clean=True)[-1] == (14, 14)
