"""Accepts the connections of one bound address."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING, Any

from pybroker.broker.network.limits import ConnectionLimits
from pybroker.broker.network.processor import Processor
from pybroker.broker.network.settings import NetworkSettings
from pybroker.protocol.timer import Timer

if TYPE_CHECKING:
    from pybroker.broker.network.connection import Connection
    from pybroker.config import Endpoint

logger = logging.getLogger(__name__)

_A_WAKE_UP = 64
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_OUT_OF_FILES_MS = 500


class Acceptor:
    """A bound socket of a listener. Nothing is accepted, and clients are refused, before `start`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timer: Timer,
        settings: NetworkSettings,
        limits: ConnectionLimits,
        processor: Processor,
        listener: Endpoint,
        family: socket.AddressFamily,
        address: str,
        port: int,
    ) -> None:
        """Binds; raises OSError."""
        self.listener = listener
        self._loop = loop
        self._timer = timer
        self._settings = settings
        self._limits = limits
        self._processor = processor
        self._accepting = False
        self._closed = False
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._sock.setblocking(False)
            if port:  # else the system might choose a port that another broker has bound and not opened yet
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self._sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
            if settings.socket_receive_buffer_bytes > 0:  # has to be known when a connection's window is agreed on
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.socket_receive_buffer_bytes)
            self._sock.bind((address, port))
        except OSError:
            self._sock.close()
            raise
        self.port: int = self._sock.getsockname()[1]

    def start(self) -> None:
        """Raises OSError where another process that bound the same address was faster."""
        self._sock.listen(self._settings.socket_listen_backlog_size)
        self._resume()

    def close(self) -> None:
        """Stop listening; accepted connections stay."""
        self._closed = True
        self._pause()
        self._sock.close()

    def _resume(self) -> None:
        if not self._accepting and not self._closed:
            self._accepting = True
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        for _ in range(_A_WAKE_UP):
            if self._has_to_wait():
                return
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    logger.error("Cannot accept connections on %s: %s", self.listener.name, error)
                    self._pause()
                    self._timer.schedule(_OUT_OF_FILES_MS, self._resume)
                    return
                continue  # the peer has gone again
            self._admit(sock, peer)

    def _has_to_wait(self) -> bool:
        """Whether limits forbid to accept now; then accepting pauses until they allow it again."""
        if self._limits.full(self.listener.name):
            self._pause()
            self._limits.wait_for_room(self._resume)
            return True
        delay_ms = self._limits.rate_wait_ms(self.listener.name)
        if delay_ms:
            self._pause()
            self._timer.schedule(delay_ms, self._resume)
            return True
        return False

    def _admit(self, sock: socket.socket, peer: tuple[Any, ...]) -> None:
        name, address = self.listener.name, str(peer[0])
        refused = self._limits.opened(name, address)
        if refused is not None:
            logger.info("Rejected connection from %s: %s", address, refused)
            sock.close()
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._settings.socket_send_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._settings.socket_send_buffer_bytes)
        except OSError:  # reset already
            sock.close()
            self._limits.closed(name, address)
            return
        self._processor.adopt(sock, self.listener, peer, lambda: self._limits.closed(name, address))
        if self._limits.over_total():
            self._push_out()

    def _push_out(self) -> None:
        """Close the least recently used connection of another listener, to make room for a broker's."""
        others: list[Connection] = [
            connection for connection in self._processor.connections if connection.listener.name != self.listener.name
        ]
        if others:
            min(others, key=lambda connection: connection.last_active).close()
