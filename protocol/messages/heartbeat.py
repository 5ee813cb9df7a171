"""HeartbeatRequest and HeartbeatResponse (API key 12)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int32


class HeartbeatRequest(Message, kind="request", api_key=12, versions="0-4", flexible="4+"):
    group_id: str = field("0+")
    generation_id: int32 = field("0+")
    member_id: str = field("0+")
    group_instance_id: str | None = field("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, kind="response", api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int32 = field("1+")
    error_code: int16 = field("0+")
