"""CreateDelegationTokenRequest and CreateDelegationTokenResponse (API key 38)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class CreatableRenewers(Struct):
    principal_type: str = field("0+")
    principal_name: str = field("0+")


class CreateDelegationTokenRequest(Message, kind="request", api_key=38, versions="0-3", flexible="2+"):
    owner_principal_type: str | None = field("3+", nullable="3+")
    owner_principal_name: str | None = field("3+", nullable="3+")
    renewers: list[CreatableRenewers] = field("0+")
    max_lifetime_ms: int64 = field("0+")


class CreateDelegationTokenResponse(Message, kind="response", api_key=38, versions="0-3", flexible="2+"):
    error_code: int16 = field("0+")
    principal_type: str = field("0+")
    principal_name: str = field("0+")
    token_requester_principal_type: str = field("3+")
    token_requester_principal_name: str = field("3+")
    issue_timestamp_ms: int64 = field("0+")
    expiry_timestamp_ms: int64 = field("0+")
    max_timestamp_ms: int64 = field("0+")
    token_id: str = field("0+")
    hmac: bytes = field("0+")
    throttle_time_ms: int32 = field("0+")
