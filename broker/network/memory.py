"""The memory that unfinished and waiting requests of all connections may hold together."""

from __future__ import annotations

import logging
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING

from pybroker.broker.network.settings import NetworkSettings
from pybroker.protocol.timer import Timer, TimerTask

if TYPE_CHECKING:
    from pybroker.broker.network.connection import Connection

logger = logging.getLogger(__name__)

_STALLED_S = 10.0


class MemoryBudget:
    """Counts bytes against queued.max.request.bytes.

    What has been received is always counted, refused is only further growth: a connection whose large frame would grow
    past the limit is paused, first come first served. One connection at a time may grow regardless, so that somebody
    always finishes; if that one stalls for ten seconds while others wait, it is closed. Memory is thus bounded by the
    limit and one socket.request.max.bytes.
    """

    __slots__ = ("_check", "_favoured", "_settings", "_timer", "_waiting", "used")

    def __init__(self, settings: NetworkSettings, timer: Timer) -> None:
        self._settings = settings
        self._timer = timer
        self.used = 0
        self._favoured: Connection | None = None
        self._waiting: deque[Connection] = deque()
        self._check: TimerTask | None = None

    @property
    def tight(self) -> bool:
        """Whether more than half is in use, and connections should receive in smaller portions."""
        return self.used * 2 > self._settings.max_queued_bytes

    def charge(self, count: int) -> None:
        self.used += count

    def release(self, count: int) -> None:
        self.used -= count
        while self._waiting and (self._favoured is None or self.used < self._settings.max_queued_bytes):
            self._admit_next()

    def may_grow(self, connection: Connection, count: int) -> bool:
        """Whether the connection may hold `count` bytes more now. If not, its `memory_came` is called when it may."""
        if self.used + count <= self._settings.max_queued_bytes or connection is self._favoured:
            return True
        if self._favoured is None:
            self._favoured = connection
            return True
        self._waiting.append(connection)
        if self._check is None:
            self._check = self._timer.schedule(_STALLED_S * 1000, self._check_stalled)
        return False

    def finished(self, connection: Connection) -> None:
        """The connection's large frame is complete, or the connection is closed."""
        if connection is self._favoured:
            self._favoured = None
            if self._waiting:
                self._admit_next()

    def _admit_next(self) -> None:
        connection = self._waiting.popleft()
        if connection.closed:
            return
        if self._favoured is None:
            self._favoured = connection
        connection.processor.loop.call_soon(connection.memory_came)

    def _check_stalled(self) -> None:
        self._check = None
        if not self._waiting:
            return
        favoured = self._favoured
        if favoured is not None and perf_counter_ns() - favoured.last_active >= _STALLED_S * 1e9:
            logger.warning(
                "Closing %s: it stopped in the middle of a request while %d others wait for memory",
                favoured, len(self._waiting),
            )  # fmt: skip
            favoured.close()
        self._check = self._timer.schedule(_STALLED_S * 1000, self._check_stalled)
