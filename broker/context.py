"""What a handler knows of the request beside its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pybroker.broker.network.connection import Connection
    from pybroker.broker.services import Services


class CloseConnection(Exception):
    """Raised by a handler, or while a request is read: close this connection, without an answer, with one log line."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EncodedResponse:
    """A response body that a handler encoded itself, in parts as an encoder returns them."""

    __slots__ = ("parts", "throttle_time_ms")

    def __init__(self, parts: list[Any], throttle_time_ms: int = 0) -> None:
        self.parts = parts
        self.throttle_time_ms = throttle_time_ms


class RequestContext:
    """One request's surroundings. Belongs to the handler until the request is answered, then it is used again.

    principal: "User:ANONYMOUS" until there is authentication. client_address: the peer's IP as text. received_at:
    time.perf_counter_ns() when the request was started.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "client_address",
        "client_id",
        "connection",
        "correlation_id",
        "frame_kept",
        "listener",
        "principal",
        "received_at",
        "security_protocol",
        "services",
    )

    def __init__(self, connection: Connection | None, services: Services | Any) -> None:
        self.api_key = -1
        self.api_version = -1
        self.correlation_id = 0
        self.client_id: str | None = None
        self.received_at = 0
        self.frame_kept = False
        self.connection = connection
        self.services = services
        self.principal = "User:ANONYMOUS"
        self.listener = "" if connection is None else connection.listener.name
        self.security_protocol = "PLAINTEXT" if connection is None else connection.listener.security_protocol
        self.client_address = "" if connection is None else connection.address

    def authorize(self, operation: str, resource_type: str, name: str) -> bool:
        """Whether the principal may do `operation` ("WRITE", "DESCRIBE", ...) on the resource. Everything may, until
        there is an authorizer."""
        return True

    def keep_frame(self) -> None:
        """Keep the request's `records` views valid until it is answered, not only until the handler returns.

        To be called before the handler returns its awaitable. The receive buffer then goes with the request, and is
        charged to queued.max.request.bytes until the answer.
        """
        self.frame_kept = True
