"""Appends that take long to check or convert: in steps, in order, and gone without a trace where they must not be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol.compression import Codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records import record
from pybroker.protocol.records.header import iter_headers, read_header
from pybroker.protocol.records.legacy import encode_set
from pybroker.protocol.records.reading import STEP, Meter
from pybroker.protocol.records.record import Record
from pybroker.protocol.work import Workshop
from pybroker.storage import append, log_append
from pybroker.storage.append import preparing
from pybroker.storage.append_queue import LARGE_WRITE
from pybroker.storage.log import AppendInfo, Log
from pybroker.storage.segment import Segment
from tests.storage.logs import NOW, batch, host, make_log
from tests.storage.test_log_mover import everything

COUNT = 2000


@asynccontextmanager
async def workshop_log(folder: Path, **settings: Any) -> AsyncIterator[Log]:
    """A log whose host has a workshop."""
    at = host()
    threads = ThreadPoolExecutor(2)
    at.workshop = Workshop(threads)
    try:
        yield make_log(folder, at=at, **settings)
    finally:
        threads.shutdown()


def messages(magic: int, codec: int = 0, count: int = COUNT) -> memoryview:
    """What an old producer sends."""
    records = [Record(at, NOW, b"k%d" % at, b"v" * 50) for at in range(count)]
    return memoryview(encode_set(records, magic=magic, codec=codec))


def produce(log: Log, records: memoryview, version: int = 2) -> AppendInfo | asyncio.Future[AppendInfo]:
    info = log.append_as_leader(records, 0, version=version)
    return info if isinstance(info, AppendInfo) else asyncio.ensure_future(info)


def values(log: Log) -> list[int]:
    """Offsets of all records."""
    data = everything(log)
    return [each.offset for at, header in iter_headers(data) for each in record.iter_records(data[at:], header)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
async def test_what_is_sent_behind_comes_behind(tmp_path: Path, magic: int, codec: int) -> None:
    async with workshop_log(tmp_path) as log:
        long = produce(log, messages(magic, codec))
        quick = produce(log, batch(3), version=9)
        again = produce(log, messages(magic, codec, 10))
        assert not isinstance(long, AppendInfo) and not isinstance(quick, AppendInfo)
        assert log.log_end_offset == 0
        infos = await asyncio.gather(long, quick, again)  # type: ignore[arg-type]
        assert [info.first_offset for info in infos] == [0, COUNT, COUNT + 3]
        assert log.queue is None
        assert isinstance(produce(log, batch(), version=9), AppendInfo)
        assert values(log) == list(range(COUNT + 14))


QUICK: list[tuple[dict[str, Any], Callable[[], memoryview], int]] = [
    ({}, lambda: batch(5000, size=100), 9),  # its header is all that is looked at
    ({}, lambda: messages(1, 0, 20), 2),
    ({"cleanup_policy": "compact"}, lambda: batch(20, key=b"k"), 9),
    ({"compression_type": "gzip"}, lambda: batch(20), 9),
]
LONG: list[tuple[dict[str, Any], Callable[[], memoryview], int]] = [
    ({"cleanup_policy": "compact"}, lambda: batch(500, key=b"k"), 9),
    ({"cleanup_policy": "compact"}, lambda: batch(1, key=b"k", codec=Codec.ZSTD), 9),
    ({"compression_type": "gzip"}, lambda: batch(500), 9),
    ({"validate_records": True}, lambda: batch(500), 9),
    ({"message_timestamp_before_max_ms": 1000}, lambda: batch(500), 9),
    ({}, lambda: messages(1, Codec.GZIP, 1), 2),
    ({}, lambda: messages(0, 0, COUNT), 0),
]


@pytest.mark.parametrize(("settings", "records", "version"), QUICK)
async def test_what_is_quick_is_done_at_once(
    tmp_path: Path, settings: dict[str, Any], records: Callable[[], memoryview], version: int
) -> None:
    async with workshop_log(tmp_path, **settings) as log:
        assert isinstance(produce(log, records(), version), AppendInfo)


@pytest.mark.parametrize(("settings", "records", "version"), LONG)
async def test_what_takes_long_is_done_in_steps_and_alike(
    tmp_path: Path, settings: dict[str, Any], records: Callable[[], memoryview], version: int
) -> None:
    async with workshop_log(tmp_path, **settings) as log:
        waiting = produce(log, records(), version)
        assert not isinstance(waiting, AppendInfo)
        await waiting
        at_once = make_log(tmp_path / "other", **settings)  # its host has no workshop
        assert isinstance(produce(at_once, records(), version), AppendInfo)
        assert everything(log) == everything(at_once)


@pytest.mark.parametrize("version", [2, 9])
async def test_what_is_large_is_written_by_a_thread(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, write = threading.current_thread(), Segment.write
    elsewhere: list[tuple[bool, bool]] = []

    def noting(segment: Segment, records: memoryview, batches: int) -> None:
        elsewhere.append((len(records) > LARGE_WRITE, threading.current_thread() is not here))
        write(segment, records, batches)

    monkeypatch.setattr(Segment, "write", noting)
    async with workshop_log(tmp_path, max_message_bytes=2 * LARGE_WRITE) as log:
        writer = log.host.writer(log)
        writer.start(asyncio.get_running_loop())
        sent = [batch(3, size=LARGE_WRITE // 3), batch(), batch(3, size=LARGE_WRITE // 3)]
        infos = [produce(log, each, version) for each in sent]
        done = await asyncio.gather(*infos)  # type: ignore[arg-type]
        assert [info.first_offset for info in done] == [0, 3, 4]
        assert elsewhere == [(True, True), (False, False), (True, True)]
        assert values(log) == list(range(7))
        writer.stop()


async def test_what_is_large_is_checked_and_written_by_a_thread_for_a_follower_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, write, check = threading.current_thread(), Segment.write, log_append.read_batches
    elsewhere: list[tuple[str, bool]] = []

    def writing(segment: Segment, records: memoryview, batches: int) -> None:
        elsewhere.append(("write", threading.current_thread() is not here))
        write(segment, records, batches)

    def checking(records: memoryview, end: int) -> Any:
        elsewhere.append(("check", threading.current_thread() is not here))
        return check(records, end)

    monkeypatch.setattr(Segment, "write", writing)
    monkeypatch.setattr(log_append, "read_batches", checking)
    async with workshop_log(tmp_path) as log:
        writer = log.host.writer(log)
        writer.start(asyncio.get_running_loop())
        small = log.append_as_follower(from_leader(0, 1))
        assert isinstance(small, AppendInfo)
        assert elsewhere == [("check", False), ("write", False)]
        large = log.append_as_follower(from_leader(1, 3, LARGE_WRITE // 3))
        behind = log.append_as_follower(from_leader(4, 1))
        assert not isinstance(large, AppendInfo) and not isinstance(behind, AppendInfo)
        assert [(await each).first_offset for each in (large, behind)] == [1, 4]
        assert elsewhere[2:] == [("check", True), ("write", True), ("check", False), ("write", False)]
        assert values(log) == list(range(5))
        assert log.queue is None
        writer.stop()


@pytest.mark.parametrize("version", [2, 9])
async def test_what_is_large_is_checked_by_a_thread(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, check = threading.current_thread(), append._check_envelope
    elsewhere: list[bool] = []

    def checking(*arguments: Any) -> Any:
        elsewhere.append(threading.current_thread() is not here)
        return check(*arguments)

    monkeypatch.setattr(append, "_check_envelope", checking)
    async with workshop_log(tmp_path, max_message_bytes=2 * LARGE_WRITE) as log:
        log.host.writer(log).start(asyncio.get_running_loop())
        info = produce(log, batch(3, size=LARGE_WRITE // 3), version)
        assert not isinstance(info, AppendInfo)
        assert (await info).last_offset == 2
        assert elsewhere and all(elsewhere)
        log.host.writer(log).stop()


def from_leader(offset: int, count: int, size: int = 10) -> memoryview:
    records = batch(count, size=size)
    log_append.ASSIGN.pack_into(records, 0, offset, len(records) - 12, 0)
    return records


async def test_a_refusal_changes_nothing_for_those_behind(tmp_path: Path) -> None:
    async with workshop_log(tmp_path, cleanup_policy="compact") as log:
        bad = produce(log, batch(500), version=9)  # without keys
        good = produce(log, batch(500, key=b"k"), version=9)
        assert not isinstance(bad, AppendInfo) and not isinstance(good, AppendInfo)
        with pytest.raises(KafkaError) as caught:
            await bad
        assert caught.value.code == Errors.INVALID_RECORD
        assert (await good).first_offset == 0


@pytest.mark.parametrize("why", [Errors.NOT_LEADER_OR_FOLLOWER, Errors.KAFKA_STORAGE_ERROR])
async def test_a_log_that_is_let_go_of_meanwhile_has_got_nothing(why: Errors, tmp_path: Path) -> None:
    async with workshop_log(tmp_path) as log:
        under_way = produce(log, messages(1))
        waiting = produce(log, messages(1))
        assert not isinstance(under_way, AppendInfo) and not isinstance(waiting, AppendInfo)
        await asyncio.sleep(0)  # the first has begun
        log.release(why)
        for each in (under_way, waiting):
            with pytest.raises(KafkaError) as caught:
                await each
            assert caught.value.code == why
        assert log.log_end_offset == 0


async def test_a_change_of_leadership_has_its_turn(tmp_path: Path) -> None:
    async with workshop_log(tmp_path) as log:
        under_way = produce(log, messages(1))
        waiting = produce(log, messages(1))
        assert not isinstance(under_way, AppendInfo) and not isinstance(waiting, AppendInfo)
        assert log.queue is not None
        await asyncio.sleep(0)
        async with log.queue.turn(refusing=Errors.NOT_LEADER_OR_FOLLOWER):
            assert under_way.done()
            assert log.log_end_offset == COUNT
        with pytest.raises(KafkaError) as caught:
            await waiting
        assert caught.value.code == Errors.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("settings", "records", "version"), LONG)
def test_steps_are_bounded(
    tmp_path: Path, settings: dict[str, Any], records: Callable[[], memoryview], version: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Records read and built between two points of rest, counted as Meter counts them."""
    in_step = most = 0

    count = Meter.due_after

    def counted(meter: Meter, found: Record) -> bool:
        nonlocal in_step, most
        in_step += 200 + len(found.key or b"") + len(found.value or b"")
        most = max(most, in_step)
        return count(meter, found)

    monkeypatch.setattr(Meter, "due_after", counted)
    log = make_log(tmp_path, **settings)
    work = preparing(records(), log.rules, version=version, now_ms=NOW, from_client=True)
    outcome, steps = None, 0
    with pytest.raises(StopIteration) as done:
        while True:
            call = work.send(outcome)
            outcome, in_step, steps = None if call is None else call(), 0, steps + 1
    built, header = done.value.value
    assert read_header(built) == header
    assert most <= 2 * STEP  # the end of one pass over them and the beginning of the next
