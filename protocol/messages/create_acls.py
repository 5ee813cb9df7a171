"""CreateAclsRequest and CreateAclsResponse (API key 30)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class AclCreation(Struct):
    resource_type: int8 = field("0+")
    resource_name: str = field("0+")
    resource_pattern_type: int8 = field("1+", default=3)
    principal: str = field("0+")
    host: str = field("0+")
    operation: int8 = field("0+")
    permission_type: int8 = field("0+")


class CreateAclsRequest(Message, kind="request", api_key=30, versions="0-3", flexible="2+"):
    creations: list[AclCreation] = field("0+")


class AclCreationResult(Struct):
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")


class CreateAclsResponse(Message, kind="response", api_key=30, versions="0-3", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    results: list[AclCreationResult] = field("0+")
