"""ExpireDelegationTokenRequest and ExpireDelegationTokenResponse (API key 40)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int32, int64


class ExpireDelegationTokenRequest(Message, kind="request", api_key=40, versions="0-2", flexible="2+"):
    hmac: bytes = field("0+")
    expiry_time_period_ms: int64 = field("0+")


class ExpireDelegationTokenResponse(Message, kind="response", api_key=40, versions="0-2", flexible="2+"):
    error_code: int16 = field("0+")
    expiry_timestamp_ms: int64 = field("0+")
    throttle_time_ms: int32 = field("0+")
