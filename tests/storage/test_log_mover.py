"""Replicas on their way from one log directory to another, while they are written and read."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import SystemClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.record import Record, build_batch
from pybroker.protocol.timer import Timer
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import random_uuid
from pybroker.storage import log_mover, replica_copy
from pybroker.storage.checkpoints import read_offsets
from pybroker.storage.directory import MOVE_MARK
from pybroker.storage.files import FileSlice
from pybroker.storage.log import Log
from pybroker.storage.log_manager import LogManager, ReplicaDescription
from pybroker.storage.meta_properties import WrongDirectory
from pybroker.storage.tools.verify import Verification
from tests.storage.faults import Faults

CLUSTER = "nWsHp_3ARcGuG51oFKnLew"
A0 = TopicPartition("a", 0)
SMALL = {"segment.bytes": "8000", "index.interval.bytes": "200", "file.delete.delay.ms": "0"}


@asynccontextmanager
async def running(root: Path, **settings: str) -> AsyncIterator[LogManager]:
    config = BrokerConfig.of({name.replace("_", "."): value for name, value in settings.items()})
    manager = LogManager(config, [root / "x", root / "y"], SystemClock())
    manager.open()
    manager.check_identity(1, CLUSTER)
    try:
        manager.load({"a": SMALL})
    except WrongDirectory:
        for directory in manager.directories:
            directory.release()
        raise
    loop = asyncio.get_running_loop()
    manager.start(loop, Timer(manager.clock, loop))
    try:
        yield manager
    finally:
        await loop.run_in_executor(None, manager.shutdown)


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.002)


def append(log: Log, count: int = 1, size: int = 100) -> None:
    for _ in range(count):
        now = log.host.clock.now_ms()
        log.append_as_leader(memoryview(build_batch([Record(0, now, b"k", os.urandom(size))])), 0)
    log.update_high_watermark(log.log_end_offset)


def everything(log: Log) -> bytes:
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 30, max_offset=log.log_end_offset, blocking=True)
        piece = read.records.read() if isinstance(read.records, FileSlice) else bytes(read.records)
        data += piece
        number = log.segment_number(offset)
        offset = log.bases[number + 1] if number + 1 < len(log.bases) else log.log_end_offset
    return data


def replicas(manager: LogManager, number: int) -> list[ReplicaDescription]:
    return manager.describe()[number].replicas


async def move(manager: LogManager, target: int) -> None:
    manager.mover.move(A0, manager.directories[target])
    await until(lambda: not manager.mover.moves)


async def test_a_replica_moves_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_copy, "ROUND_BYTES", 30_000)
    monkeypatch.setattr(replica_copy, "FINAL_BYTES", 5_000)  # 30 batches
    topic_id = random_uuid()
    async with running(tmp_path) as manager:
        log = manager.get_or_create(A0, topic_id, SMALL)
        assert log.directory.parent.name == "x"
        log.start_leader_epoch(0)
        append(log, 1000)
        log.maybe_increment_log_start_offset(5)
        before = everything(log)
        manager.mover.move(A0, manager.directories[1])
        seen = []
        while manager.mover.moves:
            append(log)
            seen += [each for each in replicas(manager, 1) if each.is_future]
            await asyncio.sleep(0.005)
        assert seen[0].topic_partition == A0
        assert max(each.offset_lag for each in seen) > 900
        assert min(each.offset_lag for each in seen) < 900
        assert log.directory == tmp_path / "y" / "a-0"
        assert everything(log).startswith(before)
        append(log, 200)
        data, end = everything(log), log.log_end_offset
        assert [each.is_future for each in replicas(manager, 1)] == [False]
        assert replicas(manager, 0) == []
        await until(lambda: not [each for each in (tmp_path / "x").iterdir() if each.is_dir()])
        await until(lambda: log.recovery_point > log.bases[-2])
    # A new start finds it there, and all in order.
    assert [
        each for each in Verification([tmp_path / "x", tmp_path / "y"], deep=True).run() if each[1] == "error"
    ] == []
    assert read_offsets(tmp_path / "y/log-start-offset-checkpoint") == {A0: 5}
    async with running(tmp_path) as manager:
        log = manager.logs[A0]
        assert (log.directory.parent.name, log.log_end_offset, log.topic_id) == ("y", end, topic_id)
        assert log.log_start_offset == 5
        assert everything(log) == data


async def test_a_crash_after_the_move_loses_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        log = manager.get_or_create(A0, None, SMALL)
        append(log, 300)
        await move(manager, 1)
        append(log, 300)
        data = everything(log)
        for directory in manager.directories:
            directory.release()
        async with running(tmp_path) as after:  # the same files, without a clean stop
            log = after.logs[A0]
            assert log.directory.parent.name == "y"
            assert everything(log) == data


async def test_what_is_being_sent_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        log = manager.get_or_create(A0, None, {"segment.bytes": "1000000"})
        append(log, 5, 50_000)
        read = log.read(0, 1 << 20, max_offset=5, blocking=True)
        assert isinstance(read.records, FileSlice)
        data = everything(log)
        await move(manager, 1)
        await until(lambda: not (tmp_path / "x/a-0").exists())
        assert read.records.intact
        assert read.records.read() == data
        read.records.release()


async def test_changes_below_the_copy_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as manager:
        log = manager.get_or_create(A0, None, SMALL)
        append(log, 400)
        copy = replica_copy.ReplicaCopy(log, tmp_path / "copy")

        def bring_up_to_date() -> None:
            while not copy.is_close:
                planned = copy.plan(replica_copy.ROUND_BYTES)
                planned.run()
                planned.release()
                copy.done(planned)

        def compare() -> None:
            copy.finish()
            names = {path.name for path in log.directory.iterdir()}
            assert {path.name for path in copy.target.iterdir()} == names
            active = f"{log.active.base_offset:020d}"
            for name in names:
                ours, theirs = (log.directory / name).read_bytes(), (copy.target / name).read_bytes()
                if name.startswith(active):  # preallocated there
                    ours = ours[: len(theirs)]
                assert ours == theirs, name

        bring_up_to_date()
        compare()
        assert copy.end_offset == 400
        append(log, 100)
        assert 400 <= copy.end_offset < 500
        bring_up_to_date()
        compare()
        log.truncate_to(250)
        append(log, 300)
        bring_up_to_date()
        compare()
        log.maybe_increment_log_start_offset(200)
        assert log.delete_old_segments()
        await until(lambda: not list(log.directory.glob("*.deleted")))
        bring_up_to_date()
        compare()


async def test_moves_end_and_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_mover, "ReplicaCopy", NeverClose)
    async with running(tmp_path) as manager:
        log = manager.get_or_create(A0, None, SMALL)
        append(log, 10)
        mover, (x, y) = manager.mover, manager.directories
        mover.move(A0, x)
        assert not mover.moves
        mover.move(A0, y)
        first = mover.moves[A0]
        mover.move(A0, y)
        assert mover.moves[A0] is first
        await until(lambda: first.path.exists())
        mover.move(A0, x)  # back to where it is
        assert not mover.moves
        await until(lambda: not first.path.exists())
        mover.move(A0, y)
        second = mover.moves[A0]
        await until(second.path.exists)
        manager.delete(A0)
        assert not mover.moves
        await until(lambda: not [each for each in tmp_path.glob("*/*") if each.is_dir()])


class NeverClose(replica_copy.ReplicaCopy):
    is_close = False


async def test_a_move_begins_anew_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(log_mover, "ReplicaCopy", NeverClose)
        async with running(tmp_path) as manager:
            log = manager.get_or_create(A0, None, SMALL)
            append(log, 100)
            data = everything(log)
            manager.mover.move(A0, manager.directories[1])
            await until(manager.mover.moves[A0].path.exists)
    left = [each for each in (tmp_path / "y").iterdir() if each.is_dir()]
    assert [each.name.rpartition("-")[2] for each in left] == ["future"]
    async with running(tmp_path) as manager:
        await until(lambda: not manager.mover.moves)
        assert manager.logs[A0].directory == tmp_path / "y/a-0"
        assert everything(manager.logs[A0]) == data
        await until(lambda: not left[0].exists())


async def test_the_target_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as manager:
        log = manager.get_or_create(A0, None, SMALL)
        append(log, 100)

        def fail(*_: object) -> None:
            raise replica_copy.TargetFailed(errno.EIO, "no more")

        monkeypatch.setattr(replica_copy.Round, "run", fail)
        await move(manager, 1)
        assert not manager.directories[1].online
        assert manager.logs[A0] is log
        append(log)
        with pytest.raises(KafkaError) as refused:
            manager.mover.directory(str(tmp_path / "y"))
        assert refused.value.code == Errors.KAFKA_STORAGE_ERROR


async def test_a_full_target_ends_the_move_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as manager:
        log = manager.get_or_create(A0, None, SMALL)
        append(log, 100)

        def fail(*_: object) -> None:
            raise replica_copy.TargetFailed(errno.ENOSPC, "full")

        monkeypatch.setattr(replica_copy.Round, "run", fail)
        await move(manager, 1)
        assert manager.directories[1].online
        await until(lambda: not [each for each in (tmp_path / "y").iterdir() if each.is_dir()])
        append(log)


async def test_every_operation_of_a_move_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is in the one place or the other, whole, is appended to, and moves when there is room again."""
    for number in range(300):
        root = tmp_path / str(number)
        faults = Faults(monkeypatch, root)
        async with running(root) as manager:
            log = manager.get_or_create(A0, random_uuid(), SMALL)
            log.start_leader_epoch(0)
            append(log, 100)
            data = everything(log)
            with faults.at(number):
                await move(manager, 1)
            reached = len(faults.seen) > number
            assert all(directory.online for directory in manager.directories)
            assert everything(log) == data
            if log.active.fd < 0:  # it could not be opened in its new place
                with pytest.raises(KafkaError):
                    append(log)
                log.start_leader_epoch(1)
            append(log, 10)
            await until(lambda root=root: not list(root.glob("?/*-future")))  # type: ignore[misc]
            await move(manager, 1)
            assert log.directory.parent.name == "y"
            append(log, 10)
            data = everything(log)
        errors = [each for each in Verification([root / "x", root / "y"], deep=True).run() if each.severity == "error"]
        assert errors == [], faults.seen[number:]
        async with running(root) as manager:
            assert everything(manager.logs[A0]) == data
        if not reached:
            break
    assert number > 20


async def test_a_throttle_holds_moves_back(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        config = manager.config
        log = manager.get_or_create(A0, None, SMALL)
        append(log, 1000)  # 170 kB
        config.apply_dynamic({log_mover.THROTTLE: "100000"}, {})
        started = time.monotonic()
        await move(manager, 1)
        assert time.monotonic() - started > (log.size - log.active.size - 100_000) / 100_000 > 0.5
        config.apply_dynamic({log_mover.THROTTLE: "0"}, {})
        manager.mover.move(A0, manager.directories[0])
        await asyncio.sleep(0.1)
        assert [each.size for each in replicas(manager, 0)] == [0]
        config.apply_dynamic({}, {})
        await until(lambda: not manager.mover.moves)
        assert log.directory.parent.name == "x"


async def test_directories_and_preferences(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        with pytest.raises(KafkaError) as refused:
            manager.mover.directory("/nonexistent")
        assert refused.value.code == Errors.LOG_DIR_NOT_FOUND
        manager.mover.prefer(A0, manager.mover.directory(str(tmp_path / "y")))
        assert manager.get_or_create(A0, None, SMALL).directory == tmp_path / "y/a-0"


async def test_a_crash_between_the_renames(tmp_path: Path) -> None:
    async with running(tmp_path) as manager:
        log = manager.get_or_create(A0, None, SMALL)
        append(log, 100)
        data = everything(log)
    copy = tmp_path / "y" / "a-0"
    copy.mkdir()
    for path in (tmp_path / "x" / "a-0").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    with pytest.raises(WrongDirectory, match="hold the same partition"):
        async with running(tmp_path):
            pass
    (copy / MOVE_MARK).touch()
    async with running(tmp_path) as manager:
        log = manager.logs[A0]
        assert log.directory.parent.name == "x"
        assert everything(log) == data
        await move(manager, 1)
        assert log.directory == copy
        assert everything(log) == data
        assert not (copy / MOVE_MARK).exists()
    (copy / MOVE_MARK).touch()  # a crash just before it went
    async with running(tmp_path) as manager:
        assert everything(manager.logs[A0]) == data
        assert not (copy / MOVE_MARK).exists()
