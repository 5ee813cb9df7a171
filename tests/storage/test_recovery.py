"""Recovery beyond the recorded crashes: swaps, damaged indexes, transactions, worker processes, kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pybroker.config import BrokerConfig, LogConfig
from pybroker.protocol.records.record import EndTxnMarker, Record, build_batch, end_txn_batch
from pybroker.protocol.types import TopicPartition
from pybroker.storage.files import PageCache
from pybroker.storage.loader import ALL_FLUSHED, Loaded, Loading, bytes_to_scan, load_partition
from pybroker.storage.log import Log
from pybroker.storage.log_host import InlineHost
from pybroker.storage.meta_properties import WrongDirectory
from pybroker.storage.recovery import tidy
from pybroker.storage.recovery_pool import recover_all
from pybroker.storage.scanner import BrokenBatch, scan_batches
from tests.support import disk

NOW = 1_796_051_600_000
SETTINGS = {"segment.bytes": "600", "index.interval.bytes": "100", "segment.index.bytes": "4096"}


def config() -> LogConfig:
    return LogConfig.from_broker(BrokerConfig.of({}), SETTINGS)


def loading(directory: Path, *, clean: bool = False, recovery_point: int = 0, log_start: int = 0) -> Loading:
    return Loading(directory, config(), clean, ALL_FLUSHED if clean else recovery_point, log_start, 86_400_000, NOW)


def load(directory: Path, **how: object) -> Loaded:
    return load_partition(loading(directory, **how), PageCache())  # type: ignore[arg-type]


def open_log(directory: Path, **how: object) -> Log:
    directory.mkdir(exist_ok=True)
    loaded = load(directory, **how)
    return Log(
        TopicPartition("t", 0), directory, config(), InlineHost(), segments=loaded.segments, producers=loaded.producers,
        leader_epochs=loaded.leader_epochs, log_start_offset=loaded.log_start_offset,
        log_end_offset=loaded.log_end_offset, recovery_point=loaded.recovery_point,
    )  # fmt: skip


def append(log: Log, count: int = 1, *, epoch: int = 0, **how: object) -> None:
    for _ in range(count):
        batch = build_batch([Record(0, NOW + log.log_end_offset, b"k", b"v" * 60)], **how)  # type: ignore[arg-type]
        log.append_as_leader(memoryview(batch), epoch)


def fill(directory: Path, count: int = 20) -> Log:
    """A log of several segments, closed as by a clean stop."""
    log = open_log(directory, clean=True)
    append(log, count)
    log.close()
    return log


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_interrupted_swap_is_finished(tmp_path: Path) -> None:
    log = fill(tmp_path / "t-0")
    before = contents(log.directory)
    assert len(log.segments) > 3
    for segment in log.segments[:3]:  # they were merged into one, which waits to take their place
        with open(log.directory / "00000000000000000000.log.swap", "ab") as swap:
            swap.write(segment.path(".log").read_bytes())
    loaded = load(log.directory, clean=True)
    assert [segment.base_offset for segment in loaded.segments] == [0, *log.bases[3:]]
    assert loaded.log_end_offset == 20
    assert not any(path.suffix == ".swap" for path in log.directory.iterdir())
    assert (log.directory / "00000000000000000000.log").stat().st_size == sum(
        len(before[f"{base:020d}.log"]) for base in log.bases[:3]
    )
    assert loaded.segments[0].locate(log.bases[3] - 1) is not None


def test_an_incomplete_swap_is_given_up(tmp_path: Path) -> None:
    log = fill(tmp_path / "t-0")
    before = contents(log.directory)
    for name in ("00000000000000000000.log.cleaned", "00000000000000000005.log.swap", "9.index.deleted"):
        (log.directory / name).write_bytes(b"x")
    tidy(log.directory, config(), PageCache())
    assert contents(log.directory) == before


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (".index", "missing"),
        (".index", "odd"),
        (".index", "past the end"),
        (".timeindex", "missing"),
        (".timeindex", "odd"),
    ],
)
def test_damaged_indexes_are_rebuilt_after_a_clean_stop_too(tmp_path: Path, kind: str, damage: str) -> None:
    log = fill(tmp_path / "t-0")
    before = contents(log.directory)
    path = log.segments[1].path(kind)
    if damage == "missing":
        path.unlink()
    elif damage == "odd":
        path.write_bytes(path.read_bytes() + b"\0\0\0")
    else:
        path.write_bytes(path.read_bytes() + (50).to_bytes(4, "big") + (10**6).to_bytes(4, "big"))
    loaded = load(log.directory, clean=True)
    for segment in loaded.segments:
        segment.close()
    assert contents(log.directory) == before


def test_only_what_lies_above_the_recovery_point_is_scanned(tmp_path: Path) -> None:
    log = fill(tmp_path / "t-0")
    first = log.segments[0].path(".log")
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    point = log.bases[2] + 1
    assert bytes_to_scan(log.directory, point) == sum(segment.size for segment in log.segments[2:])
    assert load(log.directory, recovery_point=point).log_end_offset == 20
    assert load(log.directory).log_end_offset == log.bases[1] - 1


def test_a_log_that_ends_below_its_start_starts_over(tmp_path: Path) -> None:
    log = fill(tmp_path / "t-0")
    loaded = load(log.directory, log_start=100)
    assert (loaded.log_start_offset, loaded.log_end_offset) == (100, 100)
    assert [segment.base_offset for segment in loaded.segments] == [100]
    assert not loaded.leader_epochs.entries


def test_transactions_are_rebuilt(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    sequences = {1: 0, 2: 0}

    def write(producer: int, count: int = 1) -> None:
        for _ in range(count):
            append(log, transactional=True, producer_id=producer, producer_epoch=0, base_sequence=sequences[producer])
            sequences[producer] += 1

    def end(producer: int, *, commit: bool) -> None:
        marker = end_txn_batch(EndTxnMarker(commit, 0), producer_id=producer, producer_epoch=0, timestamp=NOW)
        log.append_as_leader(memoryview(marker), 0, from_client=False)

    write(1, 6)
    write(2, 6)
    end(1, commit=False)
    write(1, 3)
    end(2, commit=False)
    log.close()
    before = contents(log.directory)
    aborted = log.aborted_transactions(0, 100)
    assert len(aborted) == 2
    for path in log.directory.iterdir():
        if path.suffix in (".txnindex", ".snapshot", ".index", ".timeindex"):
            path.unlink()
    log = open_log(log.directory)
    assert log.aborted_transactions(0, 100) == aborted
    assert log.first_unstable_offset == 13
    log.close()
    assert contents(log.directory) == before


def test_leader_epochs_are_rebuilt(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    for epoch in (0, 3, 4):
        append(log, 5, epoch=epoch)
    log.close()
    (log.directory / "leader-epoch-checkpoint").unlink()
    assert load(log.directory).leader_epochs.entries == [(0, 0), (3, 5), (4, 10)]


def test_snapshots_are_replayed_from_where_they_end(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    for sequence in range(12):
        append(log, producer_id=9, producer_epoch=1, base_sequence=sequence)
    log.close()
    log.producers.remove_snapshot(12)
    loaded = load(log.directory, clean=True)
    assert loaded.producers.entries[9].last_sequence == 11
    assert loaded.producers.snapshots[-1] == 12


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_come_to_the_same(tmp_path: Path, workers: int) -> None:
    loadings = []
    ends = {}
    for number in range(4):
        log = open_log(tmp_path / f"t-{number}", clean=True)
        append(log, 10 + number)
        for segment in log.segments:
            segment.release()
        with open(log.active.path(".log"), "ab") as file:
            file.write(b"torn")
        loadings.append(loading(log.directory))
        ends[log.directory] = 10 + number
    (tmp_path / "t-9").mkdir()
    (tmp_path / "t-9" / "partition.metadata").write_text("garbage")
    loadings.append(loading(tmp_path / "t-9"))
    results = {result.loading.directory.name: result for result in recover_all(loadings, workers, worth_a_pool=0)}
    assert len(results) == 5
    assert isinstance(results.pop("t-9").error, WrongDirectory)
    assert {result.truncated_bytes for result in results.values()} == {4}
    for directory, end in ends.items():
        assert load(directory, clean=True).log_end_offset == end


def test_the_scanner_says_where_and_why(tmp_path: Path) -> None:
    _, directory = disk.unpack("crash-trunc", tmp_path)
    path = max(directory.rglob("*.log"))
    fd = os.open(path, os.O_RDONLY)
    seen = []
    with pytest.raises(BrokenBatch, match="position 961: a batch of 96 bytes is cut off after 72"):
        for position, header, batch in scan_batches(fd, 0, path.stat().st_size):
            assert len(batch) == header.size
            seen.append(position)
    assert seen[0] == 0
    assert next(iter(scan_batches(fd, seen[1], seen[2])))[0] == seen[1]
    os.close(fd)


WRITER = """
import sys, pathlib
sys.path.insert(0, sys.argv[2])
from tests.storage.test_recovery import open_log, append
log = open_log(pathlib.Path(sys.argv[1]))
sequence = log.log_end_offset
while True:
    append(log, producer_id=3, producer_epoch=0, base_sequence=sequence)
    sequence += 1
    print(sequence, flush=True)
"""


def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / ".src")}
    directory = tmp_path / "t-0"
    acknowledged = 0
    for round_ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), str(root)], stdout=subprocess.PIPE, env=environment
        ) as writer:
            assert writer.stdout is not None
            for _ in range(50 + 37 * round_):
                acknowledged = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split(b"\n")
            acknowledged = int(rest[-2]) if len(rest) > 1 else acknowledged
        loaded = load(directory)
        assert loaded.log_end_offset >= acknowledged
        assert loaded.producers.entries[3].last_sequence == loaded.log_end_offset - 1
        offset = 0
        for segment in loaded.segments:
            for _, header, _ in scan_batches(segment.file.fd, 0, segment.size):
                assert (header.base_offset, header.base_sequence) == (offset, offset)
                offset += 1
        assert offset == loaded.log_end_offset
