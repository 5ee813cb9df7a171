"""The settings of the network layer."""

from __future__ import annotations

from dataclasses import dataclass, field

from pybroker.config import BrokerConfig
from pybroker.config.data_dir import request_memory


@dataclass(slots=True)
class NetworkSettings:
    """Kafka's settings by their names with underscores; every object of this package reads the same one.

    max_queued_bytes is queued.max.request.bytes, or a share of the machine's memory where that is unlimited (-1).
    A socket buffer of -1 is left to the system, which sizes it as it sees fit.
    """

    socket_request_max_bytes: int = 104857600
    socket_send_buffer_bytes: int = -1
    socket_receive_buffer_bytes: int = -1
    socket_listen_backlog_size: int = 1024
    connections_max_idle_ms: int = 600_000
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    max_connections_per_ip_overrides: dict[str, int] = field(default_factory=dict)
    max_connection_creation_rate: int = 2**31 - 1
    queued_max_requests: int = 500
    max_queued_bytes: int = field(default_factory=request_memory)
    listener_max_connections: dict[str, int] = field(default_factory=dict)  # by listener name
    listener_creation_rate: dict[str, int] = field(default_factory=dict)
    inter_broker_listener: str | None = None

    @classmethod
    def of(cls, config: BrokerConfig) -> NetworkSettings:
        settings = cls()
        settings.update(config)
        return settings

    def update(self, config: BrokerConfig) -> None:
        """Take the values of `config`, at start and when they change."""
        self.socket_request_max_bytes = config.int("socket.request.max.bytes")
        self.socket_send_buffer_bytes = _socket_buffer(config, "socket.send.buffer.bytes")
        self.socket_receive_buffer_bytes = _socket_buffer(config, "socket.receive.buffer.bytes")
        self.socket_listen_backlog_size = max(config.int("socket.listen.backlog.size"), 1024)
        self.connections_max_idle_ms = config.int("connections.max.idle.ms")
        self.max_connections = config.int("max.connections")
        self.max_connections_per_ip = config.int("max.connections.per.ip")
        self.max_connections_per_ip_overrides = parse_overrides(
            config.opt_str("max.connections.per.ip.overrides") or ""
        )
        self.max_connection_creation_rate = config.int("max.connection.creation.rate")
        self.queued_max_requests = config.int("queued.max.requests")
        self.listener_max_connections = _by_listener(config, "max.connections")
        self.listener_creation_rate = _by_listener(config, "max.connection.creation.rate")
        self.inter_broker_listener = config.inter_broker_listener
        queued_bytes = config.int("queued.max.request.bytes")
        self.max_queued_bytes = queued_bytes if queued_bytes > 0 else request_memory()


def parse_overrides(text: str) -> dict[str, int]:
    """Read "host:200,127.0.0.1:9" (max.connections.per.ip.overrides); an IPv6 address keeps its colons."""
    overrides = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = item.rpartition(":")
        overrides[host.strip("[]")] = int(count)
    return overrides


def _by_listener(config: BrokerConfig, name: str) -> dict[str, int]:
    """The values set below listener.name.<listener>."""
    found = {}
    for listener in config.listeners:
        prefixed = f"listener.name.{listener.name.lower()}.{name}"
        if config.is_set(prefixed):
            found[listener.name] = config.int(prefixed)
    return found


def _socket_buffer(config: BrokerConfig, name: str) -> int:
    """A buffer size only where somebody chose one: Kafka's default of 100 KiB would switch the kernel's own sizing off,
    which costs throughput on every link with a longer round trip."""
    return config.int(name) if config.is_set(name) else -1
