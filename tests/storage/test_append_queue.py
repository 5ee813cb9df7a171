"""Appends to a log directory whose disk is slow: in order, beside the loop, and consistent when writes fail."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from pybroker.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from pybroker.protocol.records.header import iter_headers
from pybroker.protocol.types import TopicPartition
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition
from pybroker.storage import append_queue
from pybroker.storage import log as log_module
from pybroker.storage.log import AppendInfo, Log
from pybroker.storage.log_manager import LogManager
from pybroker.storage.tools.verify import Verification
from tests.storage.logs import batch
from tests.storage.test_log_mover import everything, running, until
from tests.support.slow_disk import SlowDisk

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="tells the disks apart by /proc")

ON_X, ON_Y = TopicPartition("a", 0), TopicPartition("a", 1)  # in the directories x and y
SLOW_SECONDS = 0.2  # the tests' own, which a busy machine does not reach
PLAIN = {"segment.bytes": "1000000", "index.interval.bytes": "200", "file.delete.delay.ms": "0"}


@asynccontextmanager
async def slow_y(root: Path, disk: SlowDisk, **settings: str) -> AsyncIterator[tuple[LogManager, Log, Log]]:
    """A manager with a log on each of two disks, of which the second is known to be slow."""
    async with running(root) as manager:
        quick, slow = (manager.get_or_create(each, None, PLAIN | settings, is_new=True) for each in (ON_X, ON_Y))
        assert (quick.directory.parent.name, slow.directory.parent.name) == ("x", "y")
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(append_queue, "SLOW_WRITE_SECONDS", SLOW_SECONDS)
            manager.directories[1].writer.took(2 * SLOW_SECONDS)
        try:
            yield manager, quick, slow
        finally:
            disk.let_go()
            await manager.settle()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    monkeypatch.setattr(append_queue, "CALM_SECONDS", 60)
    return SlowDisk(monkeypatch, tmp_path / "y")


def begin(log: Log, records: memoryview | None = None, epoch: int = 0) -> asyncio.Future[AppendInfo]:
    info = log.append_as_leader(batch() if records is None else records, epoch)
    assert not isinstance(info, AppendInfo)
    return asyncio.ensure_future(info)


def numbered(sequence: int, size: int = 10) -> memoryview:
    return batch(producer_id=7, producer_epoch=0, base_sequence=sequence, size=size)


async def error_of(appending: asyncio.Future[AppendInfo]) -> Errors:
    with pytest.raises(KafkaError) as failure:
        await appending
    return failure.value.code


def offsets(log: Log) -> list[int]:
    return [header.base_offset for _, header in iter_headers(everything(log))]


def assert_sound(*roots: Path) -> None:
    assert [each for each in Verification(list(roots), deep=True).run() if each.severity == "error"] == []


async def test_the_other_directories_go_on(tmp_path: Path, disk: SlowDisk) -> None:
    async with slow_y(tmp_path, disk) as (_, quick, slow):
        disk.hold()
        waiting = [begin(slow) for _ in range(20)]
        await until(lambda: disk.begun > 0)
        for number in range(10):
            info = quick.append_as_leader(batch(), 0)
            assert isinstance(info, AppendInfo)
            assert info.first_offset == number
        assert not any(each.done() for each in waiting)
        assert slow.log_end_offset == slow.active.size == 0
        disk.let_go()
        assert [info.first_offset for info in await asyncio.gather(*waiting)] == list(range(20))
        assert offsets(slow) == list(range(20))
        assert slow.active.offset_index.entries > 1


async def test_slow_is_what_was_measured_and_quick_is_what_stays_so(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_queue, "SLOW_WRITE_SECONDS", SLOW_SECONDS)
    monkeypatch.setattr(log_module, "SLOW_WRITE_SECONDS", SLOW_SECONDS)
    monkeypatch.setattr(append_queue, "CALM_SECONDS", 0.2)
    async with running(tmp_path) as manager:
        quick, slow = (manager.get_or_create(each, None, PLAIN, is_new=True) for each in (ON_X, ON_Y))
        writer = manager.directories[1].writer
        now, pwrite = 0.0, disk._write

        def late(fd: int, data: bytes, position: int) -> int:
            time.sleep(now)
            return pwrite(fd, data, position)

        monkeypatch.setattr(os, "pwrite", late)
        assert isinstance(slow.append_as_leader(batch(), 0), AppendInfo)
        assert not writer.slow
        now = 1.5 * SLOW_SECONDS
        assert isinstance(slow.append_as_leader(batch(), 0), AppendInfo)  # the first one holds the loop
        assert writer.slow
        assert not manager.directories[0].writer.slow
        await begin(slow)
        others = [manager.get_or_create(TopicPartition("a", each), None, PLAIN, is_new=True) for each in (2, 3)]
        assert {each.directory.parent.name: each.queue is None for each in others} == {"x": True, "y": False}
        now = 0.0
        for _ in range(3):
            await begin(slow)
        assert writer.slow
        await asyncio.sleep(0.25)
        await begin(slow)
        assert not writer.slow
        assert slow.queue is quick.queue is None
        assert isinstance(slow.append_as_leader(batch(), 0), AppendInfo)
        assert offsets(slow) == list(range(8))
        # Slow again: now it takes longer to be trusted.
        writer.took(1)
        await asyncio.sleep(0.25)
        await begin(slow)
        assert writer.slow
        await asyncio.sleep(0.25)
        await begin(slow)
        assert not writer.slow


async def test_what_is_refused_has_not_happened(tmp_path: Path, disk: SlowDisk) -> None:
    """The disk is full for one write of an idempotent producer's five: its sequence goes on where it was."""
    async with slow_y(tmp_path, disk) as (manager, _, slow):
        await begin(slow, numbered(0))
        disk.hold()
        full = begin(slow, numbered(1, size=1000))
        behind = [begin(slow, numbered(sequence)) for sequence in (2, 3)]
        plain = begin(slow)
        await until(lambda: disk.begun > 1)
        disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        disk.let_go()
        assert await error_of(full) == Errors.KAFKA_STORAGE_ERROR
        assert [await error_of(each) for each in behind] == [Errors.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
        assert (await plain).first_offset == 1
        again = [begin(slow, numbered(sequence)) for sequence in (1, 2, 1)]
        infos = await asyncio.gather(*again)
        assert [(info.first_offset, info.duplicate) for info in infos] == [(2, False), (3, False), (2, True)]
        assert manager.directories[1].online
    assert_sound(tmp_path / "x", tmp_path / "y")


async def test_a_write_that_came_to_nothing_leaves_nothing_behind(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the bytes of a refused batch are in the file: not any more after a clean stop, or in a closed segment."""
    short = disk._write

    def torn(fd: int, data: bytes, position: int) -> int:
        if len(data) > 5000:  # not zeros for an index
            short(fd, data[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return short(fd, data, position)

    async with slow_y(tmp_path, disk) as (_, quick, slow):
        monkeypatch.setattr(os, "pwrite", torn)
        for roll in (True, False):
            await begin(slow)
            assert await error_of(begin(slow, batch(size=5000))) == Errors.KAFKA_STORAGE_ERROR
            quick.append_as_leader(batch(), 0)
            with pytest.raises(KafkaError):
                quick.append_as_leader(batch(size=5000), 0)
            if roll:
                slow.roll()
                quick.roll()
    assert_sound(tmp_path / "x", tmp_path / "y")
    async with running(tmp_path) as manager:
        for at in (ON_X, ON_Y):
            assert offsets(manager.logs[at]) == [0, 1]
            assert manager.logs[at].log_end_offset == 2


async def test_a_broken_disk_refuses_all_that_wait(tmp_path: Path, disk: SlowDisk) -> None:
    async with slow_y(tmp_path, disk) as (manager, quick, slow):
        disk.hold()
        waiting = [begin(slow) for _ in range(3)]
        await until(lambda: disk.begun > 0)
        disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
        disk.let_go()
        assert [await error_of(each) for each in waiting] == [Errors.KAFKA_STORAGE_ERROR] * 3
        assert not manager.directories[1].online
        assert isinstance(quick.append_as_leader(batch(), 0), AppendInfo)


async def test_a_log_that_is_deleted_meanwhile(tmp_path: Path, disk: SlowDisk) -> None:
    async with slow_y(tmp_path, disk) as (manager, _, slow):
        disk.hold()
        waiting = [begin(slow, batch(count=50)) for _ in range(3)]
        await until(lambda: disk.begun > 0)
        manager.delete(ON_Y)
        again = manager.get_or_create(ON_Y, None, PLAIN, is_new=True)
        fresh = begin(again)
        disk.let_go()
        assert [await error_of(each) for each in waiting] == [Errors.NOT_LEADER_OR_FOLLOWER] * 3
        assert (await fresh).first_offset == 0
        assert offsets(again) == [0]
        assert again.active.path(".log").stat().st_size == again.active.size
    assert_sound(tmp_path / "x", tmp_path / "y")


async def test_segments_roll_and_retention_keeps_off(tmp_path: Path, disk: SlowDisk) -> None:
    settings = {"segment.bytes": "500", "retention.bytes": "0"}
    async with slow_y(tmp_path, disk, **settings) as (_, _, slow):
        await asyncio.gather(*(begin(slow) for _ in range(20)))
        assert len(slow.segments) > 2
        slow.update_high_watermark(slow.log_end_offset)
        disk.hold()
        last = begin(slow)
        await until(lambda: disk.begun > 20)
        assert slow.delete_old_segments() > 0
        assert len(slow.segments) == 1  # what is being written to
        disk.let_go()
        assert (await last).first_offset == 20
        assert slow.read(20, 1000, max_offset=21).records[:8] == (20).to_bytes(8)
        assert slow.log_end_offset == 21
    assert_sound(tmp_path / "x", tmp_path / "y")


@pytest.mark.parametrize("target", [0, 1], ids=["to the quick disk", "to the slow disk"])
async def test_replicas_move_between_writes(target: int, tmp_path: Path, disk: SlowDisk) -> None:
    async with slow_y(tmp_path, disk) as (manager, *logs):
        log = logs[1 - target]
        at = log.topic_partition
        appends: list[asyncio.Future[AppendInfo] | AppendInfo] = []

        def go_on() -> bool:
            info = log.append_as_leader(batch(size=100), 0)
            appends.append(info if isinstance(info, AppendInfo) else asyncio.ensure_future(info))
            return at not in manager.mover.moves and len(appends) > 300

        for _ in range(100):
            go_on()
        manager.mover.move(at, manager.directories[target])
        await until(go_on)
        infos = [each if isinstance(each, AppendInfo) else await each for each in appends]
        assert [info.first_offset for info in infos] == list(range(len(infos)))
        assert log.directory.parent == manager.directories[target].path
        assert offsets(log) == list(range(len(infos)))
        await until(lambda: (log.queue is None) == (target == 0))
    assert_sound(tmp_path / "x", tmp_path / "y")


async def test_what_is_forced_to_the_disk_does_not_hold_up_what_is_written(tmp_path: Path, disk: SlowDisk) -> None:
    async with slow_y(tmp_path, disk, **{"flush.messages": "1"}) as (_, _, slow):
        infos = await asyncio.gather(*(begin(slow) for _ in range(20)))
        assert [info.first_offset for info in infos] == list(range(20))
        assert slow.recovery_point == 20


async def test_a_stop_waits_for_what_is_written(tmp_path: Path, disk: SlowDisk) -> None:
    async with slow_y(tmp_path, disk) as (manager, _, slow):
        disk.hold()
        waiting = [begin(slow) for _ in range(3)]
        await until(lambda: disk.begun > 0)
        settling = asyncio.ensure_future(manager.settle())
        await asyncio.sleep(0.01)
        assert not settling.done()
        assert [await error_of(each) for each in waiting[1:]] == [Errors.NOT_LEADER_OR_FOLLOWER] * 2
        disk.let_go()
        await settling
        assert (await waiting[0]).first_offset == 0
    async with running(tmp_path) as manager:
        assert manager.logs[ON_Y].log_end_offset == 1
        assert manager.logs[ON_Y].recovery_point == 1


# -- leadership -------------------------------------------------------------------------------------------------------


def order(epoch: int, leader: int) -> LeaderAndIsrRequest:
    state = LeaderAndIsrPartitionState(
        partition_index=1, leader=leader, leader_epoch=epoch, partition_epoch=epoch, replicas=[1], isr=[1]
    )
    return LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState(topic_name="a", partition_states=[state])])


async def lead_beside_writes(
    manager: LogManager, disk: SlowDisk, count: int
) -> tuple[ReplicaManager, Partition, list[asyncio.Task[AppendInfo]]]:
    """Broker 1 leads a-1 in epoch 3; of so many appends the first is being written, as long as the disk is held."""
    replicas = ReplicaManager(1, manager, manager.clock, lambda topic, index: None, lambda topic: PLAIN)
    await replicas.become_leader_or_follower(order(3, 1))
    partition = replicas.partition("a", 1)
    disk.hold()
    waiting = [asyncio.ensure_future(partition.append(batch(), 1, 9)) for _ in range(count)]  # type: ignore[arg-type]
    await until(lambda: disk.begun > 0)
    return replicas, partition, waiting


@pytest.mark.parametrize("leader", [1, 2], ids=["leads on", "follows"])
async def test_no_leader_epoch_begins_beside_a_write(leader: int, tmp_path: Path, disk: SlowDisk) -> None:
    async with slow_y(tmp_path, disk) as (manager, _, slow):
        replicas, partition, waiting = await lead_beside_writes(manager, disk, 2)
        changing = asyncio.ensure_future(replicas.become_leader_or_follower(order(4, leader)))
        await asyncio.sleep(0.01)
        waiting.append(asyncio.ensure_future(partition.append(batch(), 1, 9)))  # type: ignore[arg-type]
        assert not changing.done()
        disk.let_go()
        assert (await waiting[0]).first_offset == 0
        answer = await changing
        assert answer.topics[0].partition_errors[0].error_code == 0
        if leader == 1:  # what waited comes in the new epoch, and nothing was refused in between
            assert [(await each).first_offset for each in waiting[1:]] == [1, 2]
            assert slow.high_watermark == slow.log_end_offset == 3
            assert slow.leader_epochs.entries == [(3, 0), (4, 1)]
        else:
            assert [await error_of(each) for each in waiting[1:]] == [Errors.NOT_LEADER_OR_FOLLOWER] * 2
            assert slow.high_watermark == slow.log_end_offset == 1


async def test_a_stopped_replica_refuses_what_waits(tmp_path: Path, disk: SlowDisk) -> None:
    async with slow_y(tmp_path, disk) as (manager, _, slow):
        replicas, _, waiting = await lead_beside_writes(manager, disk, 3)
        state = StopReplicaPartitionState(partition_index=1, leader_epoch=3, delete_partition=False)
        topic = StopReplicaTopicState(topic_name="a", partition_states=[state])
        await replicas.stop_replicas(StopReplicaRequest(topic_states=[topic]))
        assert [await error_of(each) for each in waiting[1:]] == [Errors.NOT_LEADER_OR_FOLLOWER] * 2
        disk.let_go()
        assert (await waiting[0]).first_offset == 0
        assert slow.log_end_offset == 1
        assert manager.get(ON_Y) is slow


async def test_an_append_goes_on_when_nobody_waits_for_it(tmp_path: Path, disk: SlowDisk) -> None:
    """Its client has gone: what is in the log becomes visible all the same."""
    async with slow_y(tmp_path, disk) as (manager, _, slow):
        _, _, waiting = await lead_beside_writes(manager, disk, 2)
        for each in waiting:
            each.cancel()
        disk.let_go()
        await until(lambda: slow.high_watermark == 2)
