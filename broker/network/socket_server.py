"""The listeners of a broker, and everything behind them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Iterable

from pybroker.broker.kafka_apis import KafkaApis
from pybroker.broker.network.acceptor import Acceptor
from pybroker.broker.network.limits import ConnectionLimits
from pybroker.broker.network.processor import Processor
from pybroker.broker.network.sendfile import SendFile, default_sendfile
from pybroker.broker.network.settings import NetworkSettings
from pybroker.config import Endpoint
from pybroker.config.listeners import bind_addresses
from pybroker.protocol.clock import Clock
from pybroker.protocol.timer import Timer

logger = logging.getLogger(__name__)

_PORT_ATTEMPTS = 20


class SocketServer:
    """`bind` claims the ports, `start` lets clients in, `stop_accepting` and `close` end it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        timer: Timer,
        settings: NetworkSettings,
        apis: KafkaApis,
        *,
        sendfile: SendFile = default_sendfile,
    ) -> None:
        self._loop = loop
        self._timer = timer
        self._settings = settings
        self.limits = ConnectionLimits(settings, clock)
        self.processor = Processor(loop, timer, settings, apis, sendfile=sendfile)
        self._acceptors: list[Acceptor] = []
        self.endpoints: tuple[Endpoint, ...] = ()  # as bound: with the port that the system chose for 0

    def bind(self, listeners: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
        """Claim every listener's addresses; returns them with their real ports. Raises OSError naming the listener."""
        bound = []
        for listener in listeners:
            try:
                bound.append(self._bind(listener))
            except OSError as error:
                self.stop_accepting()
                raise _cannot_listen(listener, error) from error
        self.endpoints = (*self.endpoints, *bound)
        return tuple(bound)

    def start(self) -> None:
        """Accept connections. Until then they are refused. Raises OSError naming the listener."""
        for acceptor in self._acceptors:
            try:
                acceptor.start()
            except OSError as error:
                raise _cannot_listen(acceptor.listener, error) from error

    def reconfigure(self) -> None:
        """The settings object has changed: limits of connections take effect at once."""
        self.limits.reconfigure()

    def stop_accepting(self) -> None:
        """Close the listening sockets."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    async def drain(self, timeout_s: float) -> None:
        """Start no more requests; wait, for timeout_s at most, until every answer that is owed has been sent."""
        deadline = self._loop.time() + timeout_s
        connections = self.processor.connections
        for connection in tuple(connections):
            connection.finish()
        while connections and self._loop.time() < deadline:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Close listeners and connections."""
        self.stop_accepting()
        self.processor.close()

    def _bind(self, listener: Endpoint) -> Endpoint:
        """Bind each address of the listener's host to one port, which for port 0 has to be free on all of them."""
        addresses = bind_addresses(listener.host)
        for attempt in range(_PORT_ATTEMPTS):
            acceptors: list[Acceptor] = []
            port = listener.port
            try:
                for family, address in addresses:
                    acceptors.append(self._acceptor(listener, family, address, port))
                    port = acceptors[-1].port
            except OSError as error:
                for acceptor in acceptors:
                    acceptor.close()
                if listener.port or error.errno != errno.EADDRINUSE or attempt == _PORT_ATTEMPTS - 1:
                    raise
                continue
            self._acceptors += acceptors
            return listener._replace(port=port)
        raise AssertionError("unreachable")

    def _acceptor(self, listener: Endpoint, family: socket.AddressFamily, address: str, port: int) -> Acceptor:
        return Acceptor(
            self._loop, self._timer, self._settings, self.limits, self.processor, listener, family, address, port
        )


def _cannot_listen(listener: Endpoint, error: OSError) -> OSError:
    return OSError(error.errno, f"cannot listen on {listener}: {error.strerror or error}")
