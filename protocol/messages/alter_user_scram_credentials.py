"""AlterUserScramCredentialsRequest and AlterUserScramCredentialsResponse (API key 51)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class ScramCredentialDeletion(Struct):
    name: str = field("0+")
    mechanism: int8 = field("0+")


class ScramCredentialUpsertion(Struct):
    name: str = field("0+")
    mechanism: int8 = field("0+")
    iterations: int32 = field("0+")
    salt: bytes = field("0+")
    salted_password: bytes = field("0+")


class AlterUserScramCredentialsRequest(Message, kind="request", api_key=51, versions="0", flexible="0+"):
    deletions: list[ScramCredentialDeletion] = field("0+")
    upsertions: list[ScramCredentialUpsertion] = field("0+")


class AlterUserScramCredentialsResult(Struct):
    user: str = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")


class AlterUserScramCredentialsResponse(Message, kind="response", api_key=51, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    results: list[AlterUserScramCredentialsResult] = field("0+")
