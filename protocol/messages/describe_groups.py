"""DescribeGroupsRequest and DescribeGroupsResponse (API key 15)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class DescribeGroupsRequest(Message, kind="request", api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = field("0+")
    include_authorized_operations: bool = field("3+")


class DescribedGroupMember(Struct):
    member_id: str = field("0+")
    group_instance_id: str | None = field("4+", nullable="4+", default=None)
    client_id: str = field("0+")
    client_host: str = field("0+")
    member_metadata: bytes = field("0+")
    member_assignment: bytes = field("0+")


class DescribedGroup(Struct):
    error_code: int16 = field("0+")
    error_message: str | None = field("6+", nullable="6+", default=None)
    group_id: str = field("0+")
    group_state: str = field("0+")
    protocol_type: str = field("0+")
    protocol_data: str = field("0+")
    members: list[DescribedGroupMember] = field("0+")
    authorized_operations: int32 = field("3+", default=-2147483648)


class DescribeGroupsResponse(Message, kind="response", api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int32 = field("1+")
    groups: list[DescribedGroup] = field("0+")
