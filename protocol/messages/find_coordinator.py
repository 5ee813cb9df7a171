"""FindCoordinatorRequest and FindCoordinatorResponse (API key 10)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class FindCoordinatorRequest(Message, kind="request", api_key=10, versions="0-6", flexible="3+"):
    key: str = field("0-3")
    key_type: int8 = field("1+")
    coordinator_keys: list[str] = field("4+")


class Coordinator(Struct):
    key: str = field("4+")
    node_id: int32 = field("4+")
    host: str = field("4+")
    port: int32 = field("4+")
    error_code: int16 = field("4+")
    error_message: str | None = field("4+", nullable="4+")


class FindCoordinatorResponse(Message, kind="response", api_key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: int32 = field("1+")
    error_code: int16 = field("0-3")
    error_message: str | None = field("1-3", nullable="1-3")
    node_id: int32 = field("0-3")
    host: str = field("0-3")
    port: int32 = field("0-3")
    coordinators: list[Coordinator] = field("4+")
