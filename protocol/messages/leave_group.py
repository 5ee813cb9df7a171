"""LeaveGroupRequest and LeaveGroupResponse (API key 13)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class MemberIdentity(Struct):
    member_id: str = field("3+")
    group_instance_id: str | None = field("3+", nullable="3+", default=None)
    reason: str | None = field("5+", nullable="5+", default=None)


class LeaveGroupRequest(Message, kind="request", api_key=13, versions="0-5", flexible="4+"):
    group_id: str = field("0+")
    member_id: str = field("0-2")
    members: list[MemberIdentity] = field("3+")


class MemberResponse(Struct):
    member_id: str = field("3+")
    group_instance_id: str | None = field("3+", nullable="3+")
    error_code: int16 = field("3+")


class LeaveGroupResponse(Message, kind="response", api_key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int32 = field("1+")
    error_code: int16 = field("0+")
    members: list[MemberResponse] = field("3+")
