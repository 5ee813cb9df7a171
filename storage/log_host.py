"""What a log asks of whoever keeps it: the time, the page cache, and slow file work done elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pybroker.protocol.clock import Clock, SystemClock
from pybroker.protocol.work import Workshop
from pybroker.storage.append_queue import LogWriter
from pybroker.storage.files import PageCache

if TYPE_CHECKING:
    from pybroker.storage.log import Log


class LogHost(Protocol):
    """Everything but `run` is immediate. `run` may be called from the event loop only."""

    clock: Clock
    cache: PageCache
    workshop: Workshop | None
    """Where records are converted; None where that is done at once."""

    def run(self, action: Callable[[], None], done: Callable[[OSError | None], None], delay_ms: int = 0) -> None:
        """Do `action` in a thread, not before `delay_ms`; then call `done` on the event loop with its OSError."""

    def disk_failed(self, log: Log, error: OSError) -> None:
        """The disk under the log failed (it is not just full): its log directory goes offline."""

    def recovery_point_back(self) -> None:
        """A log was cut below its recovery point: the checkpoint calls flushed what is not there any more, or what
        will be written there anew."""

    def writer(self, log: Log) -> LogWriter:
        """Who writes the appends of the log's directory."""


class InlineHost:
    """A host without threads or event loop, for tools, worker processes and tests: everything is done at once."""

    __slots__ = ("_writer", "cache", "clock", "failed", "workshop")

    def __init__(self, clock: Clock | None = None, cache: PageCache | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.cache = cache or PageCache()
        self.workshop: Workshop | None = None
        self.failed: list[OSError] = []
        self._writer = LogWriter({})

    def run(self, action: Callable[[], None], done: Callable[[OSError | None], None], delay_ms: int = 0) -> None:
        """Do it now, whatever the delay."""
        try:
            action()
        except OSError as error:
            done(error)
        else:
            done(None)

    def disk_failed(self, log: Log, error: OSError) -> None:
        """Remember the failure."""
        self.failed.append(error)

    def recovery_point_back(self) -> None:
        """Nobody keeps checkpoints here."""

    def writer(self, log: Log) -> LogWriter:
        """One that writes at once, however slow the disk is."""
        return self._writer
