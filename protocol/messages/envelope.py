"""EnvelopeRequest and EnvelopeResponse (API key 58)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16


class EnvelopeRequest(Message, kind="request", api_key=58, versions="0", flexible="0+"):
    request_data: bytes = field("0+")
    request_principal: bytes | None = field("0+", nullable="0+")
    client_host_address: bytes = field("0+")


class EnvelopeResponse(Message, kind="response", api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = field("0+", nullable="0+", default=None)
    error_code: int16 = field("0+")
