"""JoinGroupRequest and JoinGroupResponse (API key 11)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class JoinGroupRequestProtocol(Struct):
    name: str = field("0+")
    metadata: bytes = field("0+")


class JoinGroupRequest(Message, kind="request", api_key=11, versions="0-9", flexible="6+"):
    group_id: str = field("0+")
    session_timeout_ms: int32 = field("0+")
    rebalance_timeout_ms: int32 = field("1+", default=-1)
    member_id: str = field("0+")
    group_instance_id: str | None = field("5+", nullable="5+", default=None)
    protocol_type: str = field("0+")
    protocols: list[JoinGroupRequestProtocol] = field("0+")
    reason: str | None = field("8+", nullable="8+", default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = field("0+")
    group_instance_id: str | None = field("5+", nullable="5+", default=None)
    metadata: bytes = field("0+")


class JoinGroupResponse(Message, kind="response", api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int32 = field("2+")
    error_code: int16 = field("0+")
    generation_id: int32 = field("0+", default=-1)
    protocol_type: str | None = field("7+", nullable="7+", default=None)
    protocol_name: str | None = field("0+", nullable="7+")
    leader: str = field("0+")
    skip_assignment: bool = field("9+")
    member_id: str = field("0+")
    members: list[JoinGroupResponseMember] = field("0+")
