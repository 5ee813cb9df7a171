"""DescribeAclsRequest and DescribeAclsResponse (API key 29)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class DescribeAclsRequest(Message, kind="request", api_key=29, versions="0-3", flexible="2+"):
    resource_type_filter: int8 = field("0+")
    resource_name_filter: str | None = field("0+", nullable="0+")
    pattern_type_filter: int8 = field("1+", default=3)
    principal_filter: str | None = field("0+", nullable="0+")
    host_filter: str | None = field("0+", nullable="0+")
    operation: int8 = field("0+")
    permission_type: int8 = field("0+")


class AclDescription(Struct):
    principal: str = field("0+")
    host: str = field("0+")
    operation: int8 = field("0+")
    permission_type: int8 = field("0+")


class DescribeAclsResource(Struct):
    resource_type: int8 = field("0+")
    resource_name: str = field("0+")
    pattern_type: int8 = field("1+", default=3)
    acls: list[AclDescription] = field("0+")


class DescribeAclsResponse(Message, kind="response", api_key=29, versions="0-3", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    resources: list[DescribeAclsResource] = field("0+")
