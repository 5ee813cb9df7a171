"""UnregisterBrokerRequest and UnregisterBrokerResponse (API key 64)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int32


class UnregisterBrokerRequest(Message, kind="request", api_key=64, versions="0", flexible="0+"):
    broker_id: int32 = field("0+")


class UnregisterBrokerResponse(Message, kind="response", api_key=64, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
