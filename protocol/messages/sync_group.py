"""SyncGroupRequest and SyncGroupResponse (API key 14)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class SyncGroupRequestAssignment(Struct):
    member_id: str = field("0+")
    assignment: bytes = field("0+")


class SyncGroupRequest(Message, kind="request", api_key=14, versions="0-5", flexible="4+"):
    group_id: str = field("0+")
    generation_id: int32 = field("0+")
    member_id: str = field("0+")
    group_instance_id: str | None = field("3+", nullable="3+", default=None)
    protocol_type: str | None = field("5+", nullable="5+", default=None)
    protocol_name: str | None = field("5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = field("0+")


class SyncGroupResponse(Message, kind="response", api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int32 = field("1+")
    error_code: int16 = field("0+")
    protocol_type: str | None = field("5+", nullable="5+", default=None)
    protocol_name: str | None = field("5+", nullable="5+", default=None)
    assignment: bytes = field("0+")
