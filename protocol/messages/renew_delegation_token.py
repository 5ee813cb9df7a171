"""RenewDelegationTokenRequest and RenewDelegationTokenResponse (API key 39)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int32, int64


class RenewDelegationTokenRequest(Message, kind="request", api_key=39, versions="0-2", flexible="2+"):
    hmac: bytes = field("0+")
    renew_period_ms: int64 = field("0+")


class RenewDelegationTokenResponse(Message, kind="response", api_key=39, versions="0-2", flexible="2+"):
    error_code: int16 = field("0+")
    expiry_timestamp_ms: int64 = field("0+")
    throttle_time_ms: int32 = field("0+")
