"""Leader epochs: assigning, answering OffsetForLeaderEpoch, truncating, and the checkpoint file."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pybroker.storage.checkpoints import CorruptCheckpoint
from pybroker.storage.leader_epochs import FILE_NAME, LeaderEpochCache
from tests.support import disk


@pytest.fixture
def cache(tmp_path: Path) -> LeaderEpochCache:
    cache = LeaderEpochCache(tmp_path)
    for epoch, start in ((0, 0), (1, 4), (5, 6), (12, 10)):
        assert cache.assign(epoch, start)
    return cache


def test_every_change_is_in_the_file(cache: LeaderEpochCache, tmp_path: Path) -> None:
    assert (tmp_path / FILE_NAME).read_text() == "0\n4\n0 0\n1 4\n5 6\n12 10\n"
    assert LeaderEpochCache.load(tmp_path).entries == cache.entries
    cache.clear()
    assert (tmp_path / FILE_NAME).read_text() == "0\n0\n"


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 4)),
        (1, (1, 6)),
        (3, (1, 6)),
        (5, (5, 10)),
        (11, (5, 10)),
        (12, (12, 15)),
        (13, (-1, -1)),
    ],
)
def test_end_offsets(cache: LeaderEpochCache, epoch: int, answer: tuple[int, int]) -> None:
    assert cache.end_offset_for_epoch(epoch, 15) == answer


def test_an_epoch_below_the_first_ends_where_that_begins(tmp_path: Path) -> None:
    cache = LeaderEpochCache(tmp_path)
    cache.assign(5, 20)
    assert cache.end_offset_for_epoch(3, 30) == (3, 20)
    assert LeaderEpochCache(tmp_path).end_offset_for_epoch(0, 30) == (-1, -1)


def test_epochs_of_offsets(cache: LeaderEpochCache) -> None:
    assert [cache.epoch_for_offset(offset) for offset in (0, 3, 4, 9, 10, 99)] == [0, 0, 1, 5, 12, 12]
    cache.truncate_from_start(5)
    assert cache.epoch_for_offset(4) is None


def test_assigning_replaces_what_cannot_be(cache: LeaderEpochCache) -> None:
    assert not cache.assign(12, 10)
    assert not cache.assign(12, 14)
    assert cache.assign(13, 10)  # epoch 12 wrote nothing
    assert cache.entries[-1] == (13, 10)
    assert cache.assign(6, 7)  # the log was truncated and goes on with an older epoch
    assert cache.entries == [(0, 0), (1, 4), (5, 6), (6, 7)]
    assert cache.latest_epoch == 6


def test_truncating(cache: LeaderEpochCache) -> None:
    cache.truncate_from_end(10)
    assert cache.entries == [(0, 0), (1, 4), (5, 6)]
    cache.truncate_from_end(7)
    assert cache.latest_epoch == 5
    cache.truncate_from_start(5)
    assert cache.entries == [(1, 5), (5, 6)]
    cache.truncate_from_start(100)
    assert cache.entries == [(5, 100)]


def test_kafkas_files_are_read_and_written(tmp_path: Path) -> None:
    _, directory = disk.unpack("cluster-broker-3", tmp_path)
    for path in directory.rglob(FILE_NAME):
        text = path.read_text()
        read = LeaderEpochCache.load(path.parent)
        written = LeaderEpochCache(tmp_path)
        for entry in read.entries:
            written.assign(*entry)
        assert not read.entries or (tmp_path / FILE_NAME).read_text() == text


def test_flushing_beside_changes(tmp_path: Path) -> None:
    cache = LeaderEpochCache(tmp_path)
    cache.flush()
    done = threading.Event()
    failures: list[OSError] = []

    def flush() -> None:
        while not done.is_set():
            try:
                cache.flush()
            except OSError as error:
                failures.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    for epoch in range(200):
        cache.assign(epoch, epoch)
    done.set()
    thread.join()
    assert not failures
    assert LeaderEpochCache.load(tmp_path).latest_epoch == 199


def test_an_unreadable_file_names_itself_and_the_remedy(tmp_path: Path) -> None:
    _, directory = disk.unpack("start-epoch-corrupt", tmp_path)
    with pytest.raises(CorruptCheckpoint, match=r"leader-epoch-checkpoint cannot be read: line 4 .* Remove it"):
        LeaderEpochCache.load(directory / "crash-plain-0")


def test_a_load_leaves_the_file_to_the_next_change(tmp_path: Path) -> None:
    cache = LeaderEpochCache(tmp_path)
    cache.assign(0, 0)
    before = (tmp_path / "leader-epoch-checkpoint").read_bytes()
    cache.truncate_from_end(0, save=False)
    assert (cache.entries, cache.latest_epoch) == ([], -1)
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == before
    cache.assign(1, 0)
    assert LeaderEpochCache.load(tmp_path).entries == [(1, 0)]
