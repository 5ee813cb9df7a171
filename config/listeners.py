"""listeners, advertised.listeners and listener.security.protocol.map, as Kafka's EndPoint and CoreUtils read them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pybroker.config.errors import ConfigError, invalid

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_URI = r"([^:]+)://(\[[0-9a-zA-Z:%._-]*\]|[^:\[\]/]*):(-?[0-9]+)\Z"


class Endpoint(NamedTuple):
    """One listener. An empty host is the wildcard address; port 0 is one that the system chooses."""

    name: str
    host: str
    port: int
    security_protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """`INTERNAL:PLAINTEXT,CLIENT:SSL` → {name: protocol}. Raises ConfigError."""
    name = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for entry in filter(None, (item.strip() for item in text.split(","))):
        listener, colon, protocol = (part.strip() for part in entry.rpartition(":"))
        if not colon or not listener:
            raise invalid(name, text, f"{entry} is not of the form LISTENER:PROTOCOL")
        if protocol.upper() not in PROTOCOLS:
            raise invalid(name, text, f"{protocol} is none of {', '.join(PROTOCOLS)}")
        if listener.upper() in protocols:
            raise invalid(name, text, f"{listener} stands there twice")
        protocols[listener.upper()] = protocol.upper()
    return protocols


def parse_listeners(setting: str, text: str, protocols: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """`PLAINTEXT://localhost:9092,CLIENT://[::1]:9093` → endpoints, names in upper case. Raises ConfigError.

    As in Kafka a name may stand twice only for one IPv4 and one IPv6 address on the same port, and a port only once
    otherwise (port 0 as often as wished). What can't be is a listener whose protocol the map doesn't say.
    """
    endpoints = []
    for entry in filter(None, (item.strip() for item in text.split(","))):
        found = re.match(_URI, entry)
        if not found:
            raise invalid(setting, text, f"{entry} is not of the form NAME://HOST:PORT")
        listener, host, port = found[1].upper(), found[2].strip("[]"), int(found[3])
        if not 0 <= port <= 65535:
            raise invalid(setting, text, f"port {port} is not between 0 and 65535")
        protocol = protocols.get(listener)
        if protocol is None:
            raise ConfigError(
                f"No security protocol defined for listener {listener}: name it in listener.security.protocol.map"
            )
        endpoints.append(Endpoint(listener, host, port, protocol))
    if setting == "listeners":
        _check_distinct(setting, text, endpoints)
    return tuple(endpoints)


def _check_distinct(setting: str, text: str, endpoints: list[Endpoint]) -> None:
    def families_differ(one: Endpoint, other: Endpoint) -> bool:
        return (":" in one.host) != (":" in other.host) and bool(one.host) and bool(other.host)

    for index, one in enumerate(endpoints):
        for other in endpoints[:index]:
            if one.name == other.name and not (families_differ(one, other) and one.port == other.port):
                raise invalid(setting, text, "Each listener must have a different name")
            if one.port == other.port != 0 and one.host == other.host:
                raise invalid(setting, text, "Each listener must have a different port")


def advertised(
    listeners: Iterable[Endpoint], *, default: bool, controller_names: Iterable[str] = ()
) -> tuple[Endpoint, ...]:
    """What clients are told when advertised.listeners isn't set: each listener as it is.

    The wildcard becomes this host's name, and the localhost of our own default becomes 127.0.0.1, so that no client
    tries ::1 first on a host that only resolves it.
    """
    hidden = set(controller_names)
    told = []
    for endpoint in listeners:
        host = endpoint.host
        if not host:
            host = socket.getfqdn()
        elif default and host == "localhost":
            host = "127.0.0.1"
        if endpoint.name not in hidden:
            told.append(endpoint._replace(host=host))
    return tuple(told)


def bind_addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """The addresses to bind for a listener's host: 127.0.0.1 and, where the host has it, ::1 for localhost.

    The wildcard is every IPv4 and IPv6 address. IPv6 sockets should be bound with IPV6_V6ONLY, so that both can be.
    Raises OSError (socket.gaierror) for a name that doesn't resolve.
    """
    if host in ("", "localhost"):
        pair = ("0.0.0.0", "::") if not host else ("127.0.0.1", "::1")
        both = [(socket.AF_INET, pair[0])]
        if _has_ipv6(pair[1]):
            both.append((socket.AF_INET6, pair[1]))
        return both
    found: list[tuple[socket.AddressFamily, str]] = []
    for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        if family in (socket.AF_INET, socket.AF_INET6) and (family, str(address[0])) not in found:
            found.append((family, str(address[0])))
    return found[:1]  # as Java does: a name stands for its first address


def _has_ipv6(address: str) -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
