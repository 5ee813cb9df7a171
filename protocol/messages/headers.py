"""RequestHeader and ResponseHeader."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int32


class RequestHeader(Message, kind="header", versions="0-2", flexible="2+"):
    request_api_key: int16 = field("0+")
    request_api_version: int16 = field("0+")
    correlation_id: int32 = field("0+")
    client_id: str | None = field("1+", nullable="1+", flexible="none")


class ResponseHeader(Message, kind="header", versions="0-1", flexible="1+"):
    correlation_id: int32 = field("0+")
