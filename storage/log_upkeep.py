"""What a LogManager does from time to time: retention, flushing, checkpoints, forgetting idle producers.

Each is one task on the event loop that looks at the logs in slices of 2 ms and leaves slow work to LogIo's threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from pybroker.protocol.errors import KafkaError
from pybroker.storage import checkpoints
from pybroker.storage.log_directory import CHECKPOINTS

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 0.002
_NEVER_MS = 10 * 365 * 86_400_000  # an interval above this (Kafka's default is 2^63 - 1 ms) means: not at all
_SOON_SECONDS = 1.0


class LogUpkeep:
    """The periodic tasks of a LogManager."""

    __slots__ = ("_loop", "_manager", "_soon", "_stopped", "_tasks", "_wanted_early")

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._tasks: list[asyncio.Task[None]] = []
        self._soon: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._wanted_early = False  # partitions have gone or were cut before there was a loop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the tasks; those that look at every log begin after log.initial.task.delay.ms, as in Kafka."""
        self._loop = loop
        if self._wanted_early:
            self.checkpoint_soon()
        setting = self._manager.config.int
        delay = setting("log.initial.task.delay.ms")
        rounds: list[tuple[str, int, int, Callable[[], Awaitable[None]]]] = [
            ("retention", delay, setting("log.retention.check.interval.ms"), self.delete_old_segments),
            ("flush", delay, setting("log.flush.scheduler.interval.ms"), self.flush_dirty),
            ("recovery points", delay, setting("log.flush.offset.checkpoint.interval.ms"), self.write_recovery_points),
            ("log starts", delay, setting("log.flush.start.offset.checkpoint.interval.ms"), self.write_log_starts),
            ("high watermarks", 0, setting("replica.high.watermark.checkpoint.interval.ms"), self.write_watermarks),
            ("producers", delay, setting("producer.id.expiration.check.interval.ms"), self.remove_expired_producers),
        ]
        for name, first, interval, work in rounds:
            if interval < _NEVER_MS:
                task = loop.create_task(_repeat(name, first, max(interval, 1), work), name=f"log {name}")
                self._tasks.append(task)

    def stop(self) -> None:
        """End the tasks; what they handed to threads goes on. May be called from another thread."""
        self._stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def checkpoint_soon(self) -> None:
        """Partitions have gone or were cut: write the checkpoints anew, once for all of a second (Kafka: at once)."""
        if self._loop is None:
            self._wanted_early = True
        elif self._soon is None and not self._stopped:
            self._soon = self._loop.call_later(_SOON_SECONDS, self._checkpoint)

    def _checkpoint(self) -> None:
        self._soon = None
        for name in CHECKPOINTS:
            self._write(name)

    async def delete_old_segments(self) -> None:
        """Retention, by time, size and log start offset."""
        started, deleted = time.monotonic(), 0
        async for log in self.every_log():
            if self._manager.cleaner.is_busy(log.topic_partition):
                continue  # its segments must stay for as long
            try:
                deleted += log.delete_old_segments()
            except KafkaError as error:
                logger.error("Retention of %r failed: %s", log, error)  # its directory is offline already
        if deleted:
            logger.info("Retention deleted %d segments in %.0f ms", deleted, (time.monotonic() - started) * 1000)

    async def flush_dirty(self) -> None:
        """Flush the logs that have waited for flush.ms."""
        now_ms = self._manager.clock.now_ms()
        async for log in self.every_log():
            if log.unflushed and now_ms - log.last_flush_ms >= log.config.flush_ms:
                log.flush_later()

    async def write_recovery_points(self) -> None:
        """Write recovery-point-offset-checkpoint."""
        self._write(checkpoints.RECOVERY_POINT)

    async def write_log_starts(self) -> None:
        """Write log-start-offset-checkpoint."""
        self._write(checkpoints.LOG_START)

    async def write_watermarks(self) -> None:
        """Write replication-offset-checkpoint."""
        self._write(checkpoints.REPLICATION_OFFSET)

    async def remove_expired_producers(self) -> None:
        """Forget producers that have been idle for producer.id.expiration.ms."""
        now_ms = self._manager.clock.now_ms()
        async for log in self.every_log():
            log.producers.remove_expired(now_ms)

    def _write(self, name: str) -> None:
        for directory in [] if self._stopped else self._manager.online:
            if directory.want_checkpoint(name):
                self._manager.io.write(directory, partial(directory.write_wanted, name))

    async def every_log(self) -> AsyncIterator[Log]:
        """Every log, with a pause for everything else after each 2 ms."""
        deadline = time.perf_counter() + _SLICE_SECONDS
        for topic_partition, log in list(self._manager.logs.items()):
            if self._stopped:
                return
            if self._manager.logs.get(topic_partition) is log:
                yield log
            if time.perf_counter() > deadline:
                await asyncio.sleep(0)
                deadline = time.perf_counter() + _SLICE_SECONDS


async def _repeat(name: str, first_ms: int, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep((first_ms or interval_ms) / 1000)
    while True:
        try:
            await work()
        except Exception:
            logger.exception("The round of %s failed", name)  # the next one may well do
        await asyncio.sleep(interval_ms / 1000)
