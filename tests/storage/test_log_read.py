"""KIP-74 and the recorded answers to Fetch."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import iter_headers
from pybroker.storage.files import FileSlice, PageCache, WouldBlock
from pybroker.storage.log import Log
from tests.storage.logs import append, batch, content, fill, host, make_log

ONE = len(batch())


def first_offsets(data: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_headers(data)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Batches at 0, 3, 5, 7 ... of 3, 2, 2, 1 records; the high watermark is at the end."""
    log = make_log(tmp_path)
    for count in (3, 2, 2, 1):
        append(log, batch(count))
    log.update_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize(("offset", "max_bytes", "min_one", "length"), [
    (0, 1 << 20, True, None),
    (0, 0, True, len(batch(3))),
    (0, 1, True, len(batch(3))),
    (0, len(batch(3)) + 15, True, len(batch(3)) + 15),  # cut off in the second batch
    (0, 0, False, 0),
    (0, 15, False, 15),
    (8, 100, True, 0),
])  # fmt: skip
def test_how_much_is_read(log: Log, offset: int, max_bytes: int, min_one: bool, length: int | None) -> None:
    read = log.read(offset, max_bytes, max_offset=log.high_watermark, min_one=min_one)
    assert len(content(read)) == (log.size if length is None else length)
    assert read.incomplete == (not min_one and max_bytes < len(batch(3)))


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (2, 0), (3, 3), (4, 3), (6, 5), (7, 7)])
def test_a_read_begins_with_the_batch_that_holds_the_offset(log: Log, offset: int, first: int) -> None:
    data = content(log.read(offset, 1 << 20, max_offset=8))
    assert first_offsets(data) == [base for base in (0, 3, 5, 7) if base >= first]


@pytest.mark.parametrize("max_offset", [0, 3, 5, 7, 8])
def test_nothing_at_or_above_max_offset_is_read(log: Log, max_offset: int) -> None:
    data = content(log.read(0, 1 << 20, max_offset=max_offset))
    assert first_offsets(data) == [base for base in (0, 3, 5, 7) if base < max_offset]


@pytest.mark.parametrize("offset", [-1, 9])
def test_outside_the_log(log: Log, offset: int) -> None:
    with pytest.raises(KafkaError) as refusal:
        log.read(offset, 100, max_offset=8)
    assert refusal.value.code == Errors.OFFSET_OUT_OF_RANGE


def test_negative_size_is_a_server_error_where_there_is_data(log: Log) -> None:
    with pytest.raises(KafkaError) as refusal:
        log.read(0, -1, max_offset=8)
    assert refusal.value.code == Errors.UNKNOWN_SERVER_ERROR
    assert len(log.read(8, -1, max_offset=8).records) == 0


def test_below_the_log_start(log: Log) -> None:
    log.maybe_increment_log_start_offset(4)
    with pytest.raises(KafkaError):
        log.read(3, 100, max_offset=8)
    assert first_offsets(content(log.read(4, 1 << 20, max_offset=8)))[0] == 3


def test_reads_stay_within_a_segment_and_pass_holes(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=2 * ONE)
    for base in (0, 1, 10, 11, 30):
        log.append_as_follower(batch(base_offset=base))
    end = log.log_end_offset
    assert log.bases == [0, 10, 30]
    assert first_offsets(content(log.read(0, 1 << 20, max_offset=end))) == [0, 1]
    assert first_offsets(content(log.read(5, 1 << 20, max_offset=end))) == [10, 11]
    assert first_offsets(content(log.read(12, 1 << 20, max_offset=end))) == [30]
    assert first_offsets(content(log.read(0, 1 << 20, max_offset=11))) == [0, 1]
    assert first_offsets(content(log.read(10, 1 << 20, max_offset=11))) == [10]


def test_every_offset_of_a_long_log(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=50 * ONE, index_interval_bytes=3 * ONE)
    fill(log, 400)
    for offset in range(400):
        assert first_offsets(content(log.read(offset, 1, max_offset=400))) == [offset]


def test_large_reads_are_slices(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    fill(log, 3, size=50_000)
    read = log.read(0, 1 << 20, max_offset=3)
    assert isinstance(read.records, FileSlice)
    assert (read.segment_base, read.position, len(read.records)) == (0, 0, log.size)
    assert isinstance(log.read(2, 1000, max_offset=3).records, bytearray)
    assert content(read) == log.active.path(".log").read_bytes()


def test_a_slice_outlives_retention(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=200_000, retention_bytes=0)
    fill(log, 5, size=90_000)
    before = log.active.path(".log").parent / f"{0:020d}.log"
    expected = before.read_bytes()
    read = log.read(0, 1 << 20, max_offset=5)
    assert log.delete_old_segments()
    assert not before.exists()
    assert content(read) == expected


class TestCold:
    """What is not in the page cache is not read on the loop."""

    @pytest.fixture(params=["nowait", "fallback"])
    def cold(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
        cache = PageCache(nowait=request.param == "nowait")
        if request.param == "nowait" and not cache.nowait:
            pytest.skip("no RWF_NOWAIT on this system")
        log = make_log(tmp_path, at=host(cache), segment_bytes=300_000)
        fill(log, 7, size=90_000)
        log.close()
        if request.param == "nowait":

            def cold_preadv(*_: Any) -> int:
                raise BlockingIOError(errno.EAGAIN, "not cached")

            monkeypatch.setattr(os, "preadv", cold_preadv)
        else:
            log.host.cache = PageCache(nowait=False)
            for segment in log.segments:
                segment._cache = log.host.cache
        log.tail_offset = -1
        return log

    def test_would_block_then_blocking_read_works(self, cold: Log) -> None:
        with pytest.raises(WouldBlock):
            cold.read(4, 1 << 20, max_offset=7)
        read = cold.read(4, 1 << 20, max_offset=7, blocking=True)
        assert len(content(read)) == len(batch(size=90_000)) * 2

    def test_pulled_in_bytes_are_read(self, cold: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        rounds = 0
        while True:
            try:
                read = cold.read(4, 1 << 20, max_offset=7)
            except WouldBlock as missing:
                missing.pull_in()
                monkeypatch.undo()  # they are cached from now on
                rounds += 1
            else:
                break
        assert 1 <= rounds <= 3
        assert len(content(read)) == len(batch(size=90_000)) * 2

    def test_pulling_in_what_is_gone_does_no_harm(self, cold: Log) -> None:
        with pytest.raises(WouldBlock) as missing:
            cold.read(4, 1 << 20, max_offset=7)
        cold.truncate_fully_and_start_at(100)
        missing.value.pull_in()

    def test_timestamps_are_searched_the_same_way(self, cold: Log) -> None:
        with pytest.raises(WouldBlock):
            cold.offset_for_timestamp(0, blocking=False)
        assert cold.offset_for_timestamp(0) is not None


def test_appends_are_warm_in_the_fallback(tmp_path: Path) -> None:
    log = make_log(tmp_path, at=host(PageCache(nowait=False)))
    fill(log, 50, size=90_000)
    assert first_offsets(content(log.read(0, 1 << 20, max_offset=50)))[0] == 0
    assert first_offsets(content(log.read(40, 1 << 20, max_offset=50)))[0] == 40


def test_tail_reads_ask_no_index(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(log.active), "locate", None)
    assert first_offsets(content(log.read(7, 1 << 20, max_offset=8))) == [7]
