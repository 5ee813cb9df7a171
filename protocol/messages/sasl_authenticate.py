"""SaslAuthenticateRequest and SaslAuthenticateResponse (API key 36)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int64


class SaslAuthenticateRequest(Message, kind="request", api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = field("0+")


class SaslAuthenticateResponse(Message, kind="response", api_key=36, versions="0-2", flexible="2+"):
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    auth_bytes: bytes = field("0+")
    session_lifetime_ms: int64 = field("1+")
