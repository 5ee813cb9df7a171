"""Appends while a log directory's disk is slow, or records have to be converted: in order, without holding the loop.

The event loop writes appends itself, as the page cache takes them in microseconds, and measures each. A disk that is
behind makes the writer wait instead: under an fsync of the same file, or a throttle. Above SLOW_WRITE_SECONDS the
LogWriter of that directory has a thread of its own write, and every log there has an AppendQueue. It takes one append
after the other: checks, offsets and all that follows from an append stay on the loop, and only the bytes are written
elsewhere, so that a write which fails has changed nothing for those behind it. The other directories notice nothing.

A log whose records take long to convert, or are a LARGE_WRITE, has an AppendQueue for as long, so that what is sent
after them comes after them.

What must not happen beside a write (a change of leadership, a move to another directory) waits for its `turn` in the
queue; what ends the log (`Log.release`) makes the write void, see log_append.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.log_append import AppendInfo

SLOW_WRITE_SECONDS = 0.020
# More bytes than this take the page cache milliseconds on the best of days: the thread writes them. By Kafka's default
# of max.message.bytes no batch is as large.
LARGE_WRITE = 2 << 20
# A disk is trusted again when no write was slow for so long; each time that this was too early, for twice as long.
CALM_SECONDS, MOST_CALM_SECONDS = 1.0, 16.0
FORGIVEN_SECONDS = 60.0


Work = Callable[[], Awaitable["AppendInfo | Awaitable[AppendInfo] | None"]]


class LogWriter:
    """Writes the appends of one log directory: at once, or in a thread while the disk is `slow` and what is large. For
    the event loop."""

    __slots__ = ("_calm_seconds", "_logs", "_loop", "_slow_at", "_thread", "slow")

    def __init__(self, logs: Mapping[TopicPartition, Log]) -> None:
        """`logs` are those that lie in the directory, at any time. Before `start` nothing counts as slow."""
        self._logs = logs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._slow_at = float("-inf")
        self._calm_seconds = CALM_SECONDS
        self.slow = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """There is a loop to go on with meanwhile."""
        self._loop = loop

    def stop(self) -> None:
        """Nothing is appended any more."""
        self._loop, self.slow = None, False
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    async def write(self, action: Callable[[], None], size: int) -> None:
        """Do the write of an append of so many bytes. OSError."""
        large = size > LARGE_WRITE
        if self._loop is None or not (self.slow or large):
            self.took(_timed(action))
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-append")
        seconds = await self._loop.run_in_executor(self._thread, _timed, action)
        if not large:  # what a large one takes says little about the disk
            self.took(seconds)

    def took(self, seconds: float) -> None:
        """A write of an append took so long."""
        now = monotonic()
        if seconds > SLOW_WRITE_SECONDS:
            if not self.slow and self._loop is not None:
                again = now - self._slow_at < FORGIVEN_SECONDS
                self._calm_seconds = min(self._calm_seconds * 2, MOST_CALM_SECONDS) if again else CALM_SECONDS
                self.slow = True
                for log in self._logs.values():
                    self.attend(log)
            self._slow_at = now
        elif self.slow and now - self._slow_at > self._calm_seconds:
            self.slow = False
            for log in self._logs.values():
                if log.queue is not None and not log.queue.busy:
                    log.queue = None

    def attend(self, log: Log) -> None:
        """The log lies in this directory now."""
        if self.slow and log.queue is None:
            log.queue = AppendQueue(log)


class AppendQueue:
    """What waits to be appended to one log, first come, first written. It is there while it is needed."""

    __slots__ = ("_log", "_runner", "_waiting")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._runner: asyncio.Task[None] | None = None
        # What to do, and who waits for it; nobody where a turn has been asked for.
        self._waiting: deque[tuple[Work, asyncio.Future[AppendInfo] | None]] = deque()

    @property
    def busy(self) -> bool:
        """Whether something is being done: the log's end may be about to move."""
        return self._runner is not None

    def put(self, append: Callable[[], Awaitable[AppendInfo | Awaitable[AppendInfo]]]) -> asyncio.Future[AppendInfo]:
        """Do `append` when all before it are done. Where it brings an awaitable, those behind it go on meanwhile.

        The result or KafkaError is in the future, which nobody else may end.
        """
        future: asyncio.Future[AppendInfo] = asyncio.get_running_loop().create_future()
        self._waiting.append((append, future))
        self._begin()
        return future

    def refuse(self, error: Errors) -> None:
        """All that wait are answered with this error; what is being written goes on."""
        waiting, self._waiting = self._waiting, deque()
        for append, future in waiting:
            if future is None:
                self._waiting.append((append, None))
            else:
                future.set_exception(KafkaError(error))

    @asynccontextmanager
    async def turn(self, refusing: Errors | None = None) -> AsyncIterator[None]:
        """Nothing is being appended inside: it comes behind the append that is under way, before those that wait. With
        `refusing` all that waits then or now gets that error instead."""
        if refusing is not None:
            self.refuse(refusing)
        loop = asyncio.get_running_loop()
        entered: asyncio.Future[None] = loop.create_future()
        left: asyncio.Future[None] = loop.create_future()

        async def hold() -> None:
            if not entered.done():
                entered.set_result(None)
                await left

        self._waiting.appendleft((hold, None))
        self._begin()
        try:
            await entered
            if refusing is not None:
                self.refuse(refusing)
            yield
        finally:
            if not left.done():
                left.set_result(None)

    def _begin(self) -> None:
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run(), name=f"appends to {self._log!r}")

    async def _run(self) -> None:
        while self._waiting:
            append, future = self._waiting.popleft()
            try:
                outcome = await append()
            except Exception as error:
                if future is None:
                    raise
                future.set_exception(error)
                continue
            if future is not None and outcome is not None:
                _settle(future, outcome)
        self._runner = None
        if self._log.queue is self and not self._log.host.writer(self._log).slow:
            self._log.queue = None


def _settle(future: asyncio.Future[AppendInfo], outcome: AppendInfo | Awaitable[AppendInfo]) -> None:
    if not isinstance(outcome, Awaitable):
        future.set_result(outcome)
        return

    def done(later: asyncio.Future[AppendInfo]) -> None:
        error = later.exception()
        if error is None:
            future.set_result(later.result())
        else:
            future.set_exception(error)

    asyncio.ensure_future(outcome).add_done_callback(done)


def _timed(action: Callable[[], None]) -> float:
    started = perf_counter()
    action()
    return perf_counter() - started
