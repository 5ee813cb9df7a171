"""Owns connections, the receive buffer that they share, and the time they may be idle."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from pybroker.broker.kafka_apis import KafkaApis
from pybroker.broker.network.connection import Connection
from pybroker.broker.network.memory import MemoryBudget
from pybroker.broker.network.request_channel import RequestChannel
from pybroker.broker.network.sendfile import SendFile, default_sendfile
from pybroker.broker.network.settings import NetworkSettings
from pybroker.config import Endpoint
from pybroker.protocol.timer import Timer, TimerTask

logger = logging.getLogger(__name__)

BUFFER_BYTES = 512 << 10
TIGHT_BYTES = 64 << 10  # what is read at once while memory is short; more than connection.SMALL
_SPARE_FROM, _SPARE_UP_TO = 256 << 10, 4 << 20


class Processor:
    """All connections of one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timer: Timer,
        settings: NetworkSettings,
        apis: KafkaApis,
        *,
        sendfile: SendFile = default_sendfile,
    ) -> None:
        self.loop = loop
        self.timer = timer
        self.sendfile = sendfile
        self.budget = MemoryBudget(settings, timer)
        self.channel = RequestChannel(apis, settings, self.budget)
        self.connections: dict[Connection, Callable[[], None]] = {}  # with what to call when one is closed
        self.send_ns = [0] * 64  # how long answers waited for their peers to read, by bit length
        self._settings = settings
        self._tight = False
        self._spare: bytearray | None = None
        self._idle_check: TimerTask | None = None
        self._accepted = 0
        self.renew_buffer()

    def adopt(
        self, sock: socket.socket, listener: Endpoint, peer: tuple[Any, ...], on_close: Callable[[], None]
    ) -> Connection:
        """Take over an accepted, non-blocking socket."""
        connection = Connection(self, sock, listener, peer, self._accepted)
        self._accepted += 1
        self.connections[connection] = on_close
        if self._idle_check is None and self._settings.connections_max_idle_ms >= 0:
            self._schedule_idle_check(float(self._settings.connections_max_idle_ms))
        return connection

    def forget(self, connection: Connection) -> None:
        """Called by a connection that closes."""
        self.budget.finished(connection)
        on_close = self.connections.pop(connection, None)
        if on_close is not None:
            on_close()

    def close(self) -> None:
        """Close every connection."""
        if self._idle_check is not None:
            self._idle_check.cancel()
            self._idle_check = None
        for connection in tuple(self.connections):
            connection.close()

    # -- memory

    def renew_buffer(self) -> None:
        """Take a new shared buffer: the old one belongs to a request that keeps its frame."""
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)[: TIGHT_BYTES if self._tight else BUFFER_BYTES]

    def charge(self, count: int) -> None:
        """Connections hold `count` bytes more."""
        self.budget.charge(count)
        if not self._tight and self.budget.tight:
            self._tight = True
            self.view = memoryview(self.buffer)[:TIGHT_BYTES]

    def release(self, count: int) -> None:
        self.budget.release(count)
        if self._tight and not self.budget.tight:
            self._tight = False
            self.view = memoryview(self.buffer)

    def memory(self, size: int) -> memoryview:
        """Memory for a large frame: the spare if it fits, whose pages the system need not clear once more."""
        spare = self._spare
        if spare is not None and _SPARE_FROM < size <= len(spare):
            self._spare = None
            return memoryview(spare)[:size]
        return memoryview(bytearray(size))

    def recycle(self, memory: memoryview) -> None:
        """A large frame has been handled: keep its memory for the next one."""
        owner = memory.obj
        if (
            isinstance(owner, bytearray)
            and _SPARE_FROM < len(owner) <= _SPARE_UP_TO
            and (self._spare is None or len(self._spare) < len(owner))
        ):
            self._spare = owner

    # -- idle connections

    def _schedule_idle_check(self, delay_ms: float) -> None:
        # At least a hundredth of the limit apart: a walk over all connections must stay cheap.
        self._idle_check = self.timer.schedule(
            max(delay_ms, self._settings.connections_max_idle_ms / 100), self._close_idle
        )

    def _close_idle(self) -> None:
        """Close what has been idle for connections.max.idle.ms; come back when the next one could be due."""
        self._idle_check = None
        limit = self._settings.connections_max_idle_ms * 1_000_000
        now = oldest = perf_counter_ns()
        for connection in tuple(self.connections):
            if now - connection.last_active >= limit:
                logger.debug("About to close the idle connection %s", connection)
                connection.close()
            elif connection.last_active < oldest:
                oldest = connection.last_active
        if self.connections:
            self._schedule_idle_check((oldest + limit - now) / 1_000_000)
