"""The cleaner of a LogManager, with its processes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import SystemClock
from pybroker.protocol.records.record import Record, build_batch
from pybroker.protocol.timer import Timer
from pybroker.protocol.types import TopicPartition
from pybroker.storage.checkpoints import read_offsets
from pybroker.storage.cleaner.choice import examine
from pybroker.storage.cleaner.worker import Worker
from pybroker.storage.files import FileSlice
from pybroker.storage.log import Log
from pybroker.storage.log_manager import LogManager
from tests.storage.compaction import last_values, records
from tests.storage.logs import NOW

T0 = TopicPartition("t", 0)
SMALL = {"cleanup.policy": "compact", "segment.bytes": "2000"}
EAGER = {"log.cleaner.backoff.ms": "20", "log.initial.task.delay.ms": "1"}


class Started:
    """A LogManager that runs in this event loop."""

    def __init__(self, root: Path, **settings: str) -> None:
        config = BrokerConfig.of(EAGER | {name.replace("_", "."): value for name, value in settings.items()})
        self.manager = LogManager(config, [root], SystemClock())
        self.manager.open()
        self.manager.check_identity(1, "nWsHp_3ARcGuG51oFKnLew")
        self.manager.load()
        loop = asyncio.get_running_loop()
        self.timer = Timer(SystemClock(), loop)
        self.manager.start(loop, self.timer)

    def log(self, topic_partition: TopicPartition = T0, **settings: str) -> Log:
        overrides = SMALL | {name.replace("_", "."): value for name, value in settings.items()}
        return self.manager.get_or_create(topic_partition, None, overrides, is_new=True)

    async def stop(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.manager.shutdown)
        self.timer.close()
        await asyncio.sleep(0)  # what was cancelled ends


@pytest.fixture
async def starting(tmp_path: Path) -> AsyncIterator[Callable[..., Started]]:
    running: list[Started] = []

    def start(**settings: str) -> Started:
        running.append(Started(tmp_path / "d", **settings))
        return running[-1]

    yield start
    for started in running:
        if any(directory._lock is not None for directory in started.manager.directories):
            await started.stop()


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


def put(log: Log, count: int, keys: int = 5, size: int = 100) -> None:
    for number in range(count):
        base = log.log_end_offset
        held = [Record(0, NOW + base, b"k%d" % (number % keys), b"%d" % base + b"x" * size)]
        log.append_as_leader(memoryview(build_batch(held)), 0)
    log.update_high_watermark(log.log_end_offset)


async def test_what_is_dirty_is_cleaned_and_checkpointed(
    starting: Callable[..., Started], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = starting()
    log = started.log()
    with caplog.at_level(logging.INFO, "pybroker.storage.cleaner"):
        put(log, 200)
        expected = last_values(records(log))
        read = log.read(0, 1 << 20, max_offset=200, blocking=True)
        await until(lambda: log.cleaned_to == log.active.base_offset and not started.manager.cleaner.is_busy(T0))
    assert isinstance(read.records, (FileSlice, bytes, bytearray))
    assert last_values(records(log)) == expected
    assert len(records(log)) < 40
    assert "t-0) is compacted up to offset" in caplog.text
    cleaner = started.manager.cleaner
    assert cleaner.passes >= 1 and cleaner.bytes_read > cleaner.bytes_kept > 0
    checkpoint = tmp_path / "d" / "cleaner-offset-checkpoint"
    await until(lambda: read_offsets(checkpoint) == {T0: log.cleaned_to})
    put(log, 100)  # and it goes on
    expected = last_values(records(log))
    await until(lambda: log.cleaned_to == log.active.base_offset)
    assert last_values(records(log)) == expected
    end, cleaned_to = log.log_end_offset, log.cleaned_to
    await started.stop()
    log = starting().manager.logs[T0]
    assert (log.log_end_offset, log.cleaned_to) == (end, cleaned_to)
    assert last_values(records(log)) == expected


async def test_appends_go_on_meanwhile(starting: Callable[..., Started]) -> None:
    started = starting(log_cleaner_io_max_bytes_per_second="200000")
    log = started.log()
    put(log, 300)
    await until(lambda: started.manager.cleaner.is_busy(T0))
    for _ in range(50):
        put(log, 2)
        await asyncio.sleep(0.005)
    expected = last_values(records(log))
    await until(lambda: log.cleaned_to > 0)
    assert last_values(records(log)) == expected
    assert log.log_end_offset == 400


async def test_two_logs_at_once(starting: Callable[..., Started]) -> None:
    started = starting(log_cleaner_threads="2", log_cleaner_io_max_bytes_per_second="100000")
    logs = [started.log(TopicPartition("t", number)) for number in range(2)]
    for log in logs:
        put(log, 300)
    await until(lambda: all(started.manager.cleaner.is_busy(log.topic_partition) for log in logs))
    started.manager.config.apply_dynamic({"log.cleaner.threads": "1"}, {})
    await until(lambda: all(log.cleaned_to > 0 for log in logs))


async def test_a_deleted_log_is_not_gone_on_with(starting: Callable[..., Started], tmp_path: Path) -> None:
    started = starting(log_cleaner_io_max_bytes_per_second="50000")
    put(started.log(file_delete_delay_ms="0"), 300)
    await until(lambda: started.manager.cleaner.is_busy(T0))
    started.manager.delete(T0)
    await until(lambda: not started.manager.cleaner.is_busy(T0))
    log = started.log()  # one of the same name is another
    put(log, 50)
    await until(lambda: log.cleaned_to > 0)
    assert len(last_values(records(log))) == 5
    await until(lambda: not list((tmp_path / "d").glob("*-delete")))


async def test_truncation_makes_a_pass_void(starting: Callable[..., Started]) -> None:
    started = starting(log_cleaner_io_max_bytes_per_second="100000")
    log = started.log()
    put(log, 300)
    await until(lambda: started.manager.cleaner.is_busy(T0))
    log.truncate_to(30)
    log.update_high_watermark(30)
    put(log, 20, keys=1)
    expected = last_values(records(log))
    await until(lambda: log.cleaned_to > 0)
    assert last_values(records(log)) == expected
    assert log.cleaned_to <= log.log_end_offset == 50


async def test_a_process_that_dies_is_replaced(
    starting: Callable[..., Started], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = Worker.start
    workers: list[Worker] = []

    async def start() -> Worker:
        workers.append(await begin())
        return workers[-1]

    monkeypatch.setattr(Worker, "start", start)
    started = starting(log_cleaner_io_max_bytes_per_second="100000")
    log = started.log()
    put(log, 300)
    await until(lambda: bool(workers) and bool(list(log.directory.glob("*.cleaned"))))
    workers[0].kill()
    await until(lambda: log.cleaned_to > 0)
    assert "ended early and is tried again" in caplog.text
    await until(lambda: not list(log.directory.glob("*.cleaned")))
    await until(lambda: workers[-1]._process.returncode is not None)  # none stays when there is nothing to do


async def test_low_priority(starting: Callable[..., Started], monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await Worker.start()
    try:
        pid = worker._process.pid
        await until(lambda: os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0))
    finally:
        await worker.close()


async def test_a_log_that_can_not_be_read_is_left_alone(
    starting: Callable[..., Started], caplog: pytest.LogCaptureFixture
) -> None:
    started = starting()
    log = started.log()
    other = started.log(TopicPartition("t", 1))
    with log.segments[0].path(".log").open("r+b") as file:
        put(log, 100)
        file.seek(16)
        file.write(b"\x77")
    await until(lambda: T0 in started.manager.cleaner.uncleanable)
    assert "can't be compacted until the broker is started again" in caplog.text
    put(other, 100)
    await until(lambda: other.cleaned_to > 0)
    assert log.cleaned_to == 0


async def test_stopping_in_the_middle(starting: Callable[..., Started]) -> None:
    started = starting(log_cleaner_io_max_bytes_per_second="100000")
    log = started.log()
    put(log, 300)
    expected = last_values(records(log))
    await until(lambda: bool(list(log.directory.glob("*.cleaned"))))
    await started.stop()
    again = starting(log_cleaner_enable="false")
    log = again.manager.logs[T0]
    assert not list(log.directory.glob("*.cleaned"))
    assert last_values(records(log)) == expected
    await asyncio.sleep(0.1)
    assert log.cleaned_to == 0 and not again.manager.cleaner.is_busy(T0)


async def test_compact_and_delete(starting: Callable[..., Started]) -> None:
    started = starting(log_retention_check_interval_ms="20")
    log = started.log(cleanup_policy="compact,delete", retention_bytes="4000", min_cleanable_dirty_ratio="0")
    for _ in range(10):
        put(log, 50, keys=1000)
        await asyncio.sleep(0.03)
    await until(lambda: log.log_start_offset > 0 and log.size < 8000)
    await until(lambda: not examine(log, NOW).dirty_bytes)
    assert started.manager.cleaner.passes > 0


async def test_a_log_that_moves_is_not_cleaned(starting: Callable[..., Started]) -> None:
    started = starting(log_cleaner_io_max_bytes_per_second="100000")
    log = started.log()
    put(log, 300)
    await until(lambda: started.manager.cleaner.is_busy(T0))
    started.manager.mover.moves = dict.fromkeys([T0])  # type: ignore[arg-type]
    started.manager.cleaner.abort(T0)
    segments = list(log.segments)
    await until(lambda: not started.manager.cleaner.is_busy(T0))
    await asyncio.sleep(0.1)
    assert log.segments == segments and not started.manager.cleaner.is_busy(T0)
    started.manager.mover.moves = {}
    await until(lambda: log.cleaned_to > 0)
