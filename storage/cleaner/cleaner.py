"""Keeping compacted topics compact (Kafka's LogCleaner): log.cleaner.threads processes, each with one log at a time.

What goes on in this process is choosing a log and swapping segments; both are short. Everything else about a log may
go on while it is cleaned: appends and reads don't notice, a truncation or deletion makes the pass void, which is found
out before anything is put in place. Retention leaves a log alone that is being cleaned, as in Kafka.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pybroker.protocol.types import TopicPartition
from pybroker.storage import checkpoints
from pybroker.storage.cleaner import swap
from pybroker.storage.cleaner.choice import Cleanable, examine
from pybroker.storage.cleaner.job import Cleaned, Failed, Finished, Job, LastRecord, Message, Note
from pybroker.storage.cleaner.worker import Worker, WorkerDied

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

_MOST_MEMORY = 2**31 - 1  # for the table of keys of one process, as in Kafka
_MB = 1_000_000


class _Void(Exception):
    """The log has changed in a way that makes the pass useless; says how."""


class _Begun(NamedTuple):
    """What was so when a pass began, and must be so as long as it goes on."""

    truncations: int
    directory: Path


class LogCleaner:
    """The cleaner of a LogManager. Its counters are for metrics: totals since the start, sizes in bytes."""

    __slots__ = (
        "_busy",
        "_choosing",
        "_loop",
        "_manager",
        "_stopped",
        "_swapping",
        "_tasks",
        "bytes_kept",
        "bytes_read",
        "passes",
        "seconds",
        "uncleanable",
    )

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._busy: dict[TopicPartition, Worker | None] = {}
        self._choosing = asyncio.Lock()
        self._swapping = threading.Lock()
        self._stopped = False
        self.uncleanable: dict[TopicPartition, Log] = {}  # those that could not be read; until the broker restarts
        self.passes = self.bytes_read = self.bytes_kept = 0
        self.seconds = 0.0

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, unless log.cleaner.enable says no; follow log.cleaner.threads."""
        if self._manager.config.bool("log.cleaner.enable"):
            self._loop = loop
            self._manager.config.on_change(self._config_changed)
            self._set_processes()

    def _config_changed(self, names: frozenset[str]) -> None:
        if "log.cleaner.threads" in names and not self._stopped:
            self._set_processes()

    def _set_processes(self) -> None:
        assert self._loop is not None
        wanted = self._manager.config.int("log.cleaner.threads")
        for task in self._tasks[wanted:]:
            task.cancel()
        del self._tasks[wanted:]
        while len(self._tasks) < wanted:
            number = len(self._tasks)
            self._tasks.append(self._loop.create_task(self._run(), name=f"log cleaner {number}"))

    def stop(self) -> None:
        """End everything; no log is touched after this returns. May be called from another thread."""
        with self._swapping:
            self._stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        for worker in self._busy.values():
            if worker is not None:
                worker.kill()

    def is_busy(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's log is being cleaned right now."""
        return topic_partition in self._busy

    def abort(self, topic_partition: TopicPartition) -> None:
        """The partition's log is going away: end its cleaning, if any."""
        self.uncleanable.pop(topic_partition, None)
        worker = self._busy.get(topic_partition)
        if worker is not None:
            worker.kill()

    # --- one process ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Clean the dirtiest log, again and again; sleep when none is dirty enough."""
        worker: Worker | None = None
        try:
            while True:
                try:
                    worker = await self._round(worker)
                except Exception:
                    logger.exception("Cleaning failed unexpectedly")  # the next round may well do
                    worker = None
                if worker is None:
                    await asyncio.sleep(self._manager.config.int("log.cleaner.backoff.ms") / 1000)
        finally:
            if worker is not None:
                worker.kill()

    async def _round(self, worker: Worker | None) -> Worker | None:
        """Clean one log, if there is any to clean; the process, if there may be more to do. It is ended otherwise,
        which gives its memory back."""
        target = await self._choose()
        try:
            if target is not None:
                try:
                    worker = worker or await Worker.start()
                    self._busy[target.topic_partition] = worker
                    if await self._clean(target, worker):
                        return worker
                except (WorkerDied, OSError) as error:
                    self._report_death(target, error)
                finally:
                    del self._busy[target.topic_partition]
        except BaseException:
            if worker is not None:
                worker.kill()
            raise
        if worker is not None:
            await worker.close()
            if target is not None:
                await self._in_thread(partial(swap.remove_output, target.directory))
        return None

    async def _choose(self) -> Log | None:
        """The dirtiest log that is worth it; it counts as busy from now on."""
        async with self._choosing:
            best: Cleanable | None = None
            now_ms = self._manager.clock.now_ms()
            async for log in self._manager.upkeep.every_log():
                partition = log.topic_partition
                if not log.config.compact or partition in self._busy or self.uncleanable.get(partition) is log:
                    continue
                if not self._is_free(log):
                    continue
                if self._manager.mover.is_moving(partition):
                    continue
                try:
                    found = examine(log, now_ms)
                except OSError as error:
                    log.storage_error(error)
                    continue
                if found.worthwhile and (best is None or found.ratio > best.ratio):
                    best = found
            if best is None or not self._is_free(best.log):
                return None
            self._busy[best.log.topic_partition] = None
            return best.log

    async def _clean(self, log: Log, worker: Worker) -> bool:
        """One pass; whether to look for the next log without a pause. WorkerDied, OSError."""
        target = examine(log, self._manager.clock.now_ms())  # again: the process may have taken its time to start
        if not self._is_free(log) or not target.worthwhile:
            return False
        begun = _Begun(log.truncations, log.directory)
        await worker.give(self._job(target))
        try:
            while True:
                message = await worker.receive()
                if isinstance(message, Cleaned):
                    self._swap(log, message, begun)
                    await self._sync(log)
                elif self._handle(target, message, begun):
                    return isinstance(message, Finished)
        except _Void as void:
            logger.info("The cleaning of %r is given up: %s", log, void)
            return False

    def _handle(self, target: Cleanable, message: Message, begun: _Begun) -> bool:
        """Any other message; whether the pass is over."""
        log = target.log
        if isinstance(message, Note):
            logger.log(message.level, message.text)
            return False
        self._check(log, begun)
        if isinstance(message, Finished):
            self._finished(target, message)
        elif isinstance(message, Failed):
            self._failed(log, message)
        return True

    def _job(self, target: Cleanable) -> Job:
        log, config = target.log, self._manager.config
        count = log.segment_number(target.first_uncleanable)
        processes = max(config.int("log.cleaner.threads"), 1)
        last_records = {
            entry.producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for entry in log.producers.entries.values()
        }
        return Job(
            directory=log.directory,
            config=log.config,
            bases=log.bases[:count],
            later=log.bases[count:],
            first_dirty=target.first_dirty,
            first_uncleanable=target.first_uncleanable,
            last_records=last_records,
            now_ms=self._manager.clock.now_ms(),
            memory=min(config.int("log.cleaner.dedupe.buffer.size") // processes, _MOST_MEMORY),
            load_factor=min(max(config.float("log.cleaner.io.buffer.load.factor"), 0.01), 1.0),
            bytes_per_second=max(config.float("log.cleaner.io.max.bytes.per.second"), 1.0) / processes,
        )

    # --- results -------------------------------------------------------------------------------------------------

    def _is_current(self, log: Log) -> bool:
        return self._manager.logs.get(log.topic_partition) is log

    def _is_free(self, log: Log) -> bool:
        """Whether it may be cleaned: what moves between log directories is copied as it is."""
        return self._is_current(log) and not self._manager.mover.is_moving(log.topic_partition)

    def _check(self, log: Log, begun: _Begun) -> None:
        """_Void unless the log is still the one that the pass was begun on."""
        if self._stopped:
            raise _Void("the broker stops")
        if not self._is_current(log):
            raise _Void("it is gone")
        if log.truncations != begun.truncations:
            raise _Void("it was truncated")
        if log.directory != begun.directory or not self._is_free(log):
            raise _Void("it moves to another log directory")
        if not log.config.compact:
            raise _Void("its topic is no longer compacted")

    def _swap(self, log: Log, message: Cleaned, begun: _Begun) -> None:
        with self._swapping:
            self._check(log, begun)
            number = log.segment_number(message.bases[0])
            old = log.segments[number : number + len(message.bases)]
            if log.active in old or [segment.base_offset for segment in old] != message.bases:
                raise _Void("its segments were deleted")
            try:
                swap.replace(log, old)
            except OSError as error:
                log.storage_error(error)
                raise _Void("its disk failed") from error

    async def _sync(self, log: Log) -> None:
        """Make the renames durable, before anything that relies on them."""
        error = await self._in_thread(partial(checkpoints.sync_directory, log.directory))
        if error is not None and self._is_current(log):
            log.storage_error(error)

    async def _in_thread(self, action: Callable[[], None]) -> OSError | None:
        """Do some file work; its error."""
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        def finished(error: OSError | None) -> None:
            if not done.cancelled():
                done.set_result(error)

        self._manager.io.run(action, finished)
        return await done

    def _finished(self, target: Cleanable, result: Finished) -> None:
        log = target.log
        log.cleaned_to = max(result.end_offset, target.first_dirty)
        home = self._manager.directory_of(log.topic_partition)
        if home.want_checkpoint(checkpoints.CLEANER_OFFSET):
            self._manager.io.write(home, partial(home.write_wanted, checkpoints.CLEANER_OFFSET))
        self.passes += 1
        self.bytes_read += result.bytes_read
        self.bytes_kept += result.bytes_kept
        self.seconds += result.seconds
        logger.info(
            "%r is compacted up to offset %d (%d was clean): %d of %d records, %.1f of %.1f MB are kept; "
            "%d keys in [%d, %d), %.1f s, %.1f MB/s",
            log, log.cleaned_to, target.first_dirty, result.records_kept, result.records_read,
            result.bytes_kept / _MB, result.bytes_read / _MB, result.keys, target.first_dirty, log.cleaned_to,
            result.seconds, result.bytes_read / _MB / max(result.seconds, 0.001),
        )  # fmt: skip

    def _failed(self, log: Log, failure: Failed) -> None:
        if failure.errno == errno.ENOENT:
            logger.error("The compaction of %r failed and is tried again later: %s", log, failure.why)
        elif failure.errno:
            log.storage_error(OSError(failure.errno, failure.why))
        else:
            logger.error("%r can't be compacted until the broker is started again: %s", log, failure.why)
            self.uncleanable[log.topic_partition] = log

    def _report_death(self, log: Log, error: Exception) -> None:
        if self._is_current(log) and not self._stopped:
            logger.warning("The process that cleaned %r ended early and is tried again later: %r", log, error)
