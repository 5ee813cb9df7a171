"""DescribeDelegationTokenRequest and DescribeDelegationTokenResponse (API key 41)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class DescribeDelegationTokenOwner(Struct):
    principal_type: str = field("0+")
    principal_name: str = field("0+")


class DescribeDelegationTokenRequest(Message, kind="request", api_key=41, versions="0-3", flexible="2+"):
    owners: list[DescribeDelegationTokenOwner] | None = field("0+", nullable="0+")


class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = field("0+")
    principal_name: str = field("0+")


class DescribedDelegationToken(Struct):
    principal_type: str = field("0+")
    principal_name: str = field("0+")
    token_requester_principal_type: str = field("3+")
    token_requester_principal_name: str = field("3+")
    issue_timestamp: int64 = field("0+")
    expiry_timestamp: int64 = field("0+")
    max_timestamp: int64 = field("0+")
    token_id: str = field("0+")
    hmac: bytes = field("0+")
    renewers: list[DescribedDelegationTokenRenewer] = field("0+")


class DescribeDelegationTokenResponse(Message, kind="response", api_key=41, versions="0-3", flexible="2+"):
    error_code: int16 = field("0+")
    tokens: list[DescribedDelegationToken] = field("0+")
    throttle_time_ms: int32 = field("0+")
