"""The slow file work of all logs: threads for fsync, removals and slow appends, and what to do when it fails.

Threads run nothing but calls that give up the interpreter lock. What they find out comes back on the event loop.
Before `start` and after `stop` there is no loop, and the work is done at once, by the caller.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.protocol.timer import Timer
from pybroker.protocol.work import Workshop
from pybroker.storage.append_queue import LogWriter

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.log_directory import LogDirectory
    from pybroker.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

_THREADS_PER_DIRECTORY = 4

Done = Callable[[OSError | None], None]


class LogIo:
    """The LogHost of every log of a LogManager."""

    __slots__ = ("_loop", "_manager", "_nowhere", "_pool", "_timer", "cache", "clock", "workshop")

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self.clock = manager.clock
        self.cache = manager.cache
        self.workshop: Workshop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: Timer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._nowhere = LogWriter({})

    def start(self, loop: asyncio.AbstractEventLoop, timer: Timer, workshop: Workshop | None = None) -> None:
        """From now on slow work goes to threads, and its results to `loop`."""
        self.workshop = workshop
        self._loop = loop
        self._timer = timer
        for directory in self._manager.directories:
            directory.writer.start(loop)

    def stop(self) -> None:
        """Finish what is under way; delayed work is left to the next start."""
        self._loop = self._timer = self.workshop = None
        for directory in self._manager.directories:
            directory.writer.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    def run(self, action: Callable[[], None], done: Done, delay_ms: int = 0) -> None:
        """Do `action` in a thread, not before `delay_ms`; then call `done` on the event loop with its OSError."""
        if delay_ms and self._timer is not None:
            self._timer.schedule(delay_ms, lambda: self.run(action, done))
        elif self._loop is None:
            done(_outcome(action))
        else:
            self._threads().submit(_outcome, action).add_done_callback(self._hand_back(self._loop, done))

    def disk_failed(self, log: Log, error: OSError) -> None:
        """The disk under a log failed: its directory goes offline, unless the log has been deleted meanwhile."""
        manager = self._manager
        if manager.logs.get(log.topic_partition) is log:
            manager.fail_directory(manager.directory_of(log.topic_partition), error)

    def recovery_point_back(self) -> None:
        """The checkpoints are written soon, once for all logs that are cut at a time."""
        self._manager.upkeep.checkpoint_soon()

    def writer(self, log: Log) -> LogWriter:
        """Who writes the appends of the log's directory; of a log that is in none any more, one that has no thread."""
        home = self._manager.home(log.topic_partition)
        return home.writer if home is not None else self._nowhere

    def remove_directory(self, path: Path, delay_ms: int) -> None:
        """Remove a partition directory that is out of service, after the delay."""

        def remove() -> None:
            import shutil  # 5 ms, which the start can do without

            shutil.rmtree(path)

        def removed(error: OSError | None) -> None:
            if error is None:
                logger.info("%s is removed", path)
            elif not isinstance(error, FileNotFoundError):
                logger.error("%s could not be removed: %s", path, error)

        self.run(remove, removed, delay_ms)

    def write(self, directory: LogDirectory, action: Callable[[], None]) -> None:
        """Do something to a log directory in a thread; failing takes it offline."""

        def written(error: OSError | None) -> None:
            if error is not None:
                self._manager.fail_directory(directory, error)

        self.run(action, written)

    def close_all(self, logs: Sequence[Log]) -> None:
        """Flush and close these logs, several at a time; blocks. The first OSError, after all have been tried."""
        pending = [log for log in logs if log.unflushed]
        failures: list[OSError] = []
        if pending:
            with ThreadPoolExecutor(_THREADS_PER_DIRECTORY, thread_name_prefix="log-flush") as pool:
                failures += [error for error in pool.map(_flush, pending) if error is not None]
        for log in logs:
            error = _outcome(log.close)
            if error is not None:
                failures.append(error)
        if failures:
            raise failures[0]

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            threads = _THREADS_PER_DIRECTORY * len(self._manager.directories)
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="log-io")
        return self._pool

    def _hand_back(self, loop: asyncio.AbstractEventLoop, done: Done) -> Callable[[Future[OSError | None]], None]:
        def hand_back(future: Future[OSError | None]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, future.result())

        return hand_back


def _flush(log: Log) -> OSError | None:
    return _outcome(log.flush)


def _outcome(action: Callable[[], None]) -> OSError | None:
    """Do it; the OSError, if any. A bug is told like a disk error, so that whoever waits is answered."""
    try:
        action()
    except OSError as error:
        return error
    except Exception as error:
        logger.exception("File work failed unexpectedly")
        return OSError(errno.EIO, repr(error))
    return None
