"""How many connections there may be, and how fast they may come (Kafka's ConnectionQuotas).

An address over max.connections.per.ip is refused by closing its connection at once. Where the broker's or a listener's
max.connections is reached, accepting waits until one closes; on the listener between brokers it doesn't, but the least
recently used connection of another listener is closed instead. Over a max.connection.creation.rate accepting waits.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable

from pybroker.broker.network.settings import NetworkSettings
from pybroker.protocol.clock import Clock
from pybroker.protocol.rate import TokenBucket

_UNLIMITED = 2**31 - 1
_BURST_SECONDS = 10  # of a creation rate may come at once: Kafka measures over 11 windows of a second


class ConnectionLimits:
    """Counts the connections of all listeners."""

    def __init__(self, settings: NetworkSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.total = 0
        self.by_listener: Counter[str] = Counter()
        self.by_address: Counter[str] = Counter()
        self._rates: dict[str, TokenBucket] = {}
        self._waiting: list[Callable[[], None]] = []
        self._overrides: dict[str, int] = {}
        self.reconfigure()

    def reconfigure(self) -> None:
        """The settings have changed."""
        settings = self._settings
        rates = dict(settings.listener_creation_rate)
        rates[""] = settings.max_connection_creation_rate
        self._rates = {
            name: TokenBucket(rate, rate * _BURST_SECONDS, self._clock)
            for name, rate in rates.items()
            if rate < _UNLIMITED
        }
        self._overrides = {
            address: count
            for host, count in settings.max_connections_per_ip_overrides.items()
            for address in _addresses(host)
        }
        self._wake()

    def full(self, listener: str) -> bool:
        """Whether one more connection on the listener has to wait for another to close."""
        settings = self._settings
        if self.by_listener[listener] >= settings.listener_max_connections.get(listener, _UNLIMITED):
            return True
        return self.total >= settings.max_connections and not self.is_protected(listener)

    def over_total(self) -> bool:
        """Whether a connection that was let in regardless should push out another."""
        return self.total > self._settings.max_connections

    def is_protected(self, listener: str) -> bool:
        """Whether it is the one that brokers use, beside others."""
        return listener == self._settings.inter_broker_listener and any(
            count for name, count in self.by_listener.items() if name != listener
        )

    def rate_wait_ms(self, listener: str) -> int:
        """How long accepting on the listener has to wait for the creation rates; takes nothing."""
        return max((bucket.wait_ms() for bucket in self._buckets(listener)), default=0)

    def wait_for_room(self, resume: Callable[[], None]) -> None:
        """Call `resume` when a connection has closed or a limit has changed."""
        self._waiting.append(resume)

    def opened(self, listener: str, address: str) -> str | None:
        """Count a connection that was accepted. Returns why it must be closed again (and isn't counted), or None."""
        for bucket in self._buckets(listener):
            bucket.take()
        limit = self._overrides.get(address, self._settings.max_connections_per_ip)
        if self.by_address[address] >= limit:
            return f"address already has the configured maximum of {limit} connections"
        self.total += 1
        self.by_listener[listener] += 1
        self.by_address[address] += 1
        return None

    def closed(self, listener: str, address: str) -> None:
        self.total -= 1
        self.by_listener[listener] -= 1
        self.by_address[address] -= 1
        if not self.by_address[address]:
            del self.by_address[address]
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def _buckets(self, listener: str) -> list[TokenBucket]:
        return [self._rates[name] for name in ("", listener) if name in self._rates]


def _addresses(host: str) -> list[str]:
    """The addresses that a host of max.connections.per.ip.overrides stands for."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return [host]
