"""Logging that cannot hold the event loop, and the tick that shows when something else does.

A log line is formatted where it arises, put on a bounded queue, and written by a thread: a full disk or a terminal
that stopped reading costs lines, not answers. Each kind of line (logger and message template) may come a few times in
a period; what is over that is counted, and the count told when the period has passed.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
from typing import TextIO

logger = logging.getLogger(__name__)

QUEUE_LINES = 10_000
LINES_A_PERIOD = 20  # of one kind
PERIOD_S = 10.0
KINDS = 1_000  # remembered at once

TICK_S = 0.05
LATE_S = 0.02

_FORMAT = "%(asctime)s %(levelname)s [%(name)s] %(message)s"
_PREFIX = "pybroker."


class _Kind:
    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0


class QueuedHandler(logging.Handler):
    """Hands lines to a writing thread. `dropped` counts those that found the queue full."""

    def __init__(
        self,
        stream: TextIO,
        *,
        queue_lines: int = QUEUE_LINES,
        lines_a_period: int = LINES_A_PERIOD,
        period_s: float = PERIOD_S,
    ) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))
        self.dropped = 0
        self._stream = stream
        self._lines_a_period = lines_a_period
        self._period_s = period_s
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._queue: queue.Queue[str | None] = queue.Queue(queue_lines)
        self._thread = threading.Thread(target=self._write, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            note = self._admit(record)
            if note is not None:
                self._put(f"{self.format(record)}{note}\n")
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Write what is queued (for a second at most) and end the thread."""
        try:
            self._queue.put(None, timeout=1)
        except queue.Full:
            pass  # whoever reads the log has stopped; the thread dies with the process
        else:
            self._thread.join(timeout=1)
        super().close()

    def _admit(self, record: logging.LogRecord) -> str | None:
        """None if there were too many lines of this kind lately, else what to add to the line."""
        now = record.created
        key = (record.name, str(record.msg))
        kind = self._kinds.get(key)
        note = ""
        if kind is None or now - kind.since >= self._period_s:
            if kind is not None and kind.count > self._lines_a_period:
                note = f" ({kind.count - self._lines_a_period} more such lines were left out)"
            elif kind is None and len(self._kinds) >= KINDS:
                self._kinds.pop(next(iter(self._kinds)))
            kind = self._kinds[key] = _Kind(now)
        kind.count += 1
        return note if kind.count <= self._lines_a_period else None

    def _put(self, line: str) -> None:
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def _write(self) -> None:
        stream = self._stream
        while (line := self._queue.get()) is not None:
            try:
                stream.write(line)
                if self._queue.empty():
                    stream.flush()
            except (OSError, ValueError):
                self.dropped += 1  # nowhere to write to any more, and nowhere to say so
        try:
            stream.flush()
        except (OSError, ValueError):
            self.dropped += 1


class _ShortName(logging.Filter):
    """Drops the package's name from logger names: "broker.kafka_apis"."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.name = record.name.removeprefix(_PREFIX)
        return True


def setup_logging(level: int = logging.INFO, stream: TextIO | None = None) -> QueuedHandler:
    """Send every log line through one QueuedHandler to `stream` (stderr). Close the handler at the end."""
    handler = QueuedHandler(sys.stderr if stream is None else stream)
    handler.addFilter(_ShortName())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    return handler


class LoopMonitor:
    """Measures how late a tick of 50 ms comes, which is how long something held the event loop.

    `late_ms` counts ticks by the bit length of their lateness in ms; `worst_ms` is the largest.
    """

    __slots__ = ("_due", "_handle", "_loop", "late_ms", "worst_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self.late_ms = [0] * 32
        self.worst_ms = 0

    def start(self) -> None:
        self._due = time.monotonic() + TICK_S
        self._handle = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self) -> None:
        late = max(0.0, time.monotonic() - self._due)
        late_ms = int(late * 1000)
        self.late_ms[min(late_ms.bit_length(), 31)] += 1
        self.worst_ms = max(self.worst_ms, late_ms)
        if late > LATE_S:
            logger.warning("The event loop was held up for %d ms", late_ms)
        self.start()
