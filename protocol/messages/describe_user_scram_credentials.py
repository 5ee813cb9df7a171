"""DescribeUserScramCredentialsRequest and DescribeUserScramCredentialsResponse (API key 50)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class UserName(Struct):
    name: str = field("0+")


class DescribeUserScramCredentialsRequest(Message, kind="request", api_key=50, versions="0", flexible="0+"):
    users: list[UserName] | None = field("0+", nullable="0+")


class CredentialInfo(Struct):
    mechanism: int8 = field("0+")
    iterations: int32 = field("0+")


class DescribeUserScramCredentialsResult(Struct):
    user: str = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    credential_infos: list[CredentialInfo] = field("0+")


class DescribeUserScramCredentialsResponse(Message, kind="response", api_key=50, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field("0+")
