"""SaslHandshakeRequest and SaslHandshakeResponse (API key 17)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16


class SaslHandshakeRequest(Message, kind="request", api_key=17, versions="0-1"):
    mechanism: str = field("0+")


class SaslHandshakeResponse(Message, kind="response", api_key=17, versions="0-1"):
    error_code: int16 = field("0+")
    mechanisms: list[str] = field("0+")
