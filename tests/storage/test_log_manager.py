"""The LogManager: placing, deleting, failing, describing, stopping and starting again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import ManualClock, SystemClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.record import Record, build_batch
from pybroker.protocol.timer import Timer
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import random_uuid
from pybroker.storage import log_upkeep
from pybroker.storage.checkpoints import read_offsets
from pybroker.storage.log import Log
from pybroker.storage.log_manager import LogManager
from pybroker.storage.meta_properties import WrongDirectory
from pybroker.storage.partition_metadata import read_topic_id

NOW = 1_796_051_600_000
CLUSTER = "nWsHp_3ARcGuG51oFKnLew"
A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)


class Directories:
    """LogManagers over the same directories, one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.open: list[LogManager] = []

    def start(self, *names: str, clock: SystemClock | ManualClock | None = None, **settings: str) -> LogManager:
        config = BrokerConfig.of({name.replace("_", "."): value for name, value in settings.items()})
        manager = LogManager(config, [self.root / name for name in names or ("d",)], clock or ManualClock(NOW))
        self.open.append(manager)
        manager.open()
        manager.check_identity(1, CLUSTER)
        manager.load()
        return manager

    def kill(self, manager: LogManager) -> None:
        """As if the process had gone."""
        for directory in manager.directories:
            directory.release()
        self.open.remove(manager)

    def stop(self, manager: LogManager) -> None:
        manager.shutdown()
        self.open.remove(manager)


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Directories]:
    directories = Directories(tmp_path)
    yield directories
    for manager in list(directories.open):
        directories.kill(manager)


def append(log: Log, count: int = 1, *, timestamp: int = NOW, sequence: int | None = None) -> None:
    for number in range(count):
        how = {} if sequence is None else {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence + number}
        log.append_as_leader(memoryview(build_batch([Record(0, timestamp, b"k", b"v" * 50)], **how)), 0)
    log.update_high_watermark(log.log_end_offset)


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


def test_a_clean_stop_brings_everything_back(directories: Directories) -> None:
    topic_id = random_uuid()
    manager = directories.start()
    log = manager.get_or_create(A0, topic_id, {"segment.bytes": "300"}, is_new=True)
    append(log, 10, sequence=0)
    log.maybe_increment_log_start_offset(3)
    directories.stop(manager)
    root = directories.root / "d"
    assert (root / ".kafka_cleanshutdown").exists()
    assert read_offsets(root / "recovery-point-offset-checkpoint") == {A0: 10}
    assert read_offsets(root / "replication-offset-checkpoint") == {A0: 10}

    manager = directories.start()
    assert not (root / ".kafka_cleanshutdown").exists()
    log = manager.logs[A0]
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.topic_id) == (3, 10, 10, topic_id)
    assert log.recovery_point == 10
    assert manager.checkpointed_high_watermark(A0) == 10
    assert log.producers.entries[5].last_sequence == 9
    append(log, 1, sequence=10)


def test_after_a_kill_everything_written_is_there(directories: Directories) -> None:
    manager = directories.start()
    log = manager.get_or_create(A0, None, {"segment.bytes": "300"}, is_new=True)
    append(log, 20, sequence=0)
    assert len(log.segments) > 3
    directories.kill(manager)
    manager = directories.start()
    log = manager.logs[A0]
    assert log.log_end_offset == 20
    assert log.producers.entries[5].last_sequence == 19
    assert log.recovery_point == 0
    read = log.read(0, 1 << 20, max_offset=20, blocking=True)
    assert len(read.records)


def test_new_logs_go_to_the_directory_with_the_fewest(directories: Directories) -> None:
    manager = directories.start("x", "y", "z")
    for partition in range(7):
        manager.get_or_create(TopicPartition("t", partition), None, {}, is_new=True)
    assert sorted(len(directory.logs) for directory in manager.directories) == [2, 2, 3]
    assert {log.directory.parent.name for log in manager.logs.values()} == {"x", "y", "z"}


def test_a_topic_id_is_settled_once(directories: Directories) -> None:
    manager = directories.start()
    log = manager.get_or_create(A0, None, {}, is_new=True)
    assert log.topic_id is None
    topic_id = random_uuid()
    assert manager.get_or_create(A0, topic_id, {}) is log
    assert log.topic_id == topic_id == read_topic_id(log.directory)
    with pytest.raises(KafkaError, match="INCONSISTENT_TOPIC_ID"):
        manager.get_or_create(A0, random_uuid(), {})


def test_a_creation_that_failed_half_way_is_taken_up_again(directories: Directories) -> None:
    manager = directories.start()
    left = directories.root / "d" / "a-0"
    left.mkdir()
    (left / "00000000000000000000.log").touch()
    log = manager.get_or_create(A0, random_uuid(), {}, is_new=True)
    append(log, 3)
    directories.kill(manager)
    assert directories.start().logs[A0].log_end_offset == 3


def test_settings_reach_the_logs_of_their_topic(directories: Directories) -> None:
    manager = directories.start()
    a = manager.get_or_create(A0, None, {}, is_new=True)
    b = manager.get_or_create(TopicPartition("b", 0), None, {"retention.ms": "77"}, is_new=True)
    manager.update_topic_config("a", {"segment.bytes": "12345"})
    assert a.config.segment_bytes == 12345
    assert b.config.segment_bytes != 12345
    manager.config.apply_dynamic({"log.segment.bytes": "54321", "log.retention.ms": "99"}, {})
    assert (a.config.segment_bytes, a.config.retention_ms) == (12345, 99)
    assert (b.config.segment_bytes, b.config.retention_ms) == (54321, 77)


async def test_a_deleted_log_is_out_of_the_way_at_once_and_removed_later(directories: Directories) -> None:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    manager = directories.start(clock=clock)
    timer = Timer(clock, loop)
    manager.start(loop, timer)
    log = manager.get_or_create(A0, None, {"file.delete.delay.ms": "100"}, is_new=True)
    append(log, 5)
    manager.delete(A0)
    root = directories.root / "d"
    left = [path.name for path in root.iterdir() if path.is_dir()]
    assert manager.get(A0) is None
    assert len(left) == 1
    assert left[0].startswith("a-0.")
    assert left[0].endswith("-delete")
    again = manager.get_or_create(A0, None, {}, is_new=True)
    assert again.log_end_offset == 0
    await until(lambda: not (root / left[0]).exists())
    assert (root / "a-0").exists()
    directories.stop(manager)
    timer.close()


async def test_what_was_being_deleted_is_removed_after_a_restart(directories: Directories) -> None:
    manager = directories.start()
    manager.get_or_create(A0, None, {}, is_new=True)
    manager.get_or_create(A1, None, {}, is_new=True)
    directories.kill(manager)
    (directories.root / "d" / "a-0").rename(directories.root / "d" / f"a-0.{'0' * 32}-delete")
    clock = SystemClock()
    manager = directories.start(clock=clock, log_segment_delete_delay_ms="1")
    assert list(manager.logs) == [A1]
    loop = asyncio.get_running_loop()
    timer = Timer(clock, loop)
    manager.start(loop, timer)
    root = directories.root / "d"
    await until(lambda: [path.name for path in root.iterdir() if path.is_dir()] == ["a-1"])
    directories.stop(manager)
    timer.close()


def test_a_new_log_does_not_inherit_the_offsets_of_a_deleted_one(directories: Directories) -> None:
    manager = directories.start()
    log = manager.get_or_create(A0, None, {}, is_new=True)
    append(log, 50)
    log.maybe_increment_log_start_offset(40)
    directories.stop(manager)
    manager = directories.start()
    manager.delete(A0)
    append(manager.get_or_create(A0, None, {}, is_new=True), 3)
    directories.kill(manager)
    log = directories.start().logs[A0]
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)


def test_a_failed_directory_takes_its_logs_along_and_no_others(directories: Directories) -> None:
    manager = directories.start("x", "y")
    failures: list[tuple[Path, list[TopicPartition]]] = []
    manager.on_dir_failure = lambda path, partitions: failures.append((path, partitions))
    a0 = manager.get_or_create(A0, None, {}, is_new=True)
    a1 = manager.get_or_create(A1, None, {}, is_new=True)
    assert a0.directory.parent != a1.directory.parent
    manager.io.disk_failed(a0, OSError(5, "Input/output error"))
    manager.io.disk_failed(a0, OSError(5, "Input/output error"))
    assert failures == [(a0.directory.parent, [A0])]
    assert manager.get(A0) is None
    assert manager.is_offline(A0)
    with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
        manager.get_or_create(A0, None, {}, is_new=True)
    with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
        manager.get_or_create(TopicPartition("old", 0), None, {})  # may lie in the failed one
    manager.get_or_create(TopicPartition("new", 0), None, {}, is_new=True)
    append(a1, 3)
    first, second = manager.describe()
    assert (first.error, first.replicas) == (Errors.KAFKA_STORAGE_ERROR, [])
    assert second.error == Errors.NONE
    sizes = {replica.topic_partition: replica.size for replica in second.replicas}
    assert sizes == {A1: a1.size, TopicPartition("new", 0): 0}
    assert second.usable_bytes > 0
    directories.stop(manager)
    assert not (directories.root / "x" / ".kafka_cleanshutdown").exists()
    assert (directories.root / "y" / ".kafka_cleanshutdown").exists()


def test_a_full_disk_takes_nothing_offline(directories: Directories) -> None:
    manager = directories.start()
    log = manager.get_or_create(A0, None, {}, is_new=True)
    manager.io.disk_failed(log, OSError(errno.ENOSPC, "No space left on device"))
    assert manager.get(A0) is log
    append(log)


def test_an_unusable_directory_is_offline_and_the_others_go_on(directories: Directories) -> None:
    (directories.root / "x").write_text("a file")
    manager = directories.start("x", "y")
    assert [directory.path.name for directory in manager.online] == ["y"]
    with pytest.raises(WrongDirectory, match=r"No log directory can be used\. .*/x: "):
        directories.start("x")


def test_an_unreadable_checkpoint_takes_its_directory_offline(directories: Directories) -> None:
    manager = directories.start("x", "y")
    for partition in range(2):
        manager.get_or_create(TopicPartition("a", partition), None, {}, is_new=True)
    directories.stop(manager)
    (directories.root / "x" / "recovery-point-offset-checkpoint").write_text("garbage")
    manager = directories.start("x", "y")
    assert len(manager.logs) == 1
    assert sum(manager.is_offline(TopicPartition("a", partition)) for partition in range(2)) == 1


def test_one_partition_in_two_directories_is_refused(directories: Directories) -> None:
    for name in ("x", "y"):
        (directories.root / name / "a-0").mkdir(parents=True)
    with pytest.raises(WrongDirectory, match="hold the same partition"):
        directories.start("x", "y")


def test_one_directory_by_two_names_is_refused(directories: Directories) -> None:
    (directories.root / "x").mkdir()
    (directories.root / "y").symlink_to("x")
    with pytest.raises(WrongDirectory, match=r"Duplicate log directory found: .*/y and .*/x are the same"):
        directories.start("x", "y")


def test_a_refused_start_leaves_the_clean_mark(directories: Directories) -> None:
    manager = directories.start()
    log = manager.get_or_create(A0, random_uuid(), {}, is_new=True)
    directories.stop(manager)
    (log.directory / "partition.metadata").write_text("garbage")
    with pytest.raises(WrongDirectory, match=r"partition\.metadata"):
        directories.start()
    assert (directories.root / "d" / ".kafka_cleanshutdown").exists()


async def test_upkeep_deletes_old_segments_and_writes_checkpoints(directories: Directories) -> None:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    manager = directories.start(
        clock=clock,
        log_initial_task_delay_ms="1",
        log_retention_check_interval_ms="10",
        replica_high_watermark_checkpoint_interval_ms="10",
        log_flush_offset_checkpoint_interval_ms="10",
        log_flush_start_offset_checkpoint_interval_ms="10",
        log_flush_scheduler_interval_ms="10",
        producer_id_expiration_check_interval_ms="10",
    )
    timer = Timer(clock, loop)
    manager.start(loop, timer)
    log = manager.get_or_create(
        A0, None, {"segment.bytes": "200", "retention.ms": "1000", "flush.ms": "10"}, is_new=True
    )
    append(log, 5, timestamp=1000, sequence=0)
    append(log, 1, timestamp=clock.now_ms(), sequence=5)
    root = directories.root / "d"
    await until(lambda: len(log.segments) == 1)
    assert log.log_start_offset == 5
    await until(lambda: read_offsets(root / "replication-offset-checkpoint") == {A0: 6})
    await until(lambda: read_offsets(root / "recovery-point-offset-checkpoint") == {A0: 6})
    log.producers.entries[5].last_timestamp = 1000
    await until(lambda: not log.producers.entries)
    directories.stop(manager)
    timer.close()


async def test_what_is_cut_before_the_tasks_begin_is_checkpointed_when_they_do(
    directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_upkeep, "_SOON_SECONDS", 0.001)
    loop, clock = asyncio.get_running_loop(), SystemClock()
    manager, timer = directories.start(clock=clock), Timer(clock, loop)
    checkpoint = directories.root / "d" / "recovery-point-offset-checkpoint"
    log = manager.get_or_create(A0, None, {}, is_new=True)
    append(log, 5, timestamp=clock.now_ms())
    log.flush()
    await manager.upkeep.write_recovery_points()
    assert read_offsets(checkpoint) == {A0: 5}
    log.truncate_to(2)
    assert read_offsets(checkpoint) == {A0: 5}
    manager.start(loop, timer)
    await until(lambda: read_offsets(checkpoint) == {A0: 2})
    directories.stop(manager)
    timer.close()


async def test_a_log_that_was_cut_below_its_recovery_point_is_checkpointed(
    directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the next turn: what is written where flushed records were has not been flushed."""
    monkeypatch.setattr(log_upkeep, "_SOON_SECONDS", 0.001)
    loop, clock = asyncio.get_running_loop(), SystemClock()
    manager, timer = directories.start(clock=clock), Timer(clock, loop)
    manager.start(loop, timer)
    checkpoint = directories.root / "d" / "recovery-point-offset-checkpoint"
    log = manager.get_or_create(A0, None, {}, is_new=True)
    for cut in (lambda: log.truncate_to(2), lambda: log.truncate_fully_and_start_at(1)):
        append(log, 5, timestamp=clock.now_ms())
        log.flush()
        await manager.upkeep.write_recovery_points()
        await until(lambda: read_offsets(checkpoint) == {A0: log.log_end_offset})
        cut()
        await until(lambda: read_offsets(checkpoint) == {A0: log.log_end_offset})
        assert log.recovery_point == log.log_end_offset
    directories.stop(manager)
    timer.close()
