"""DeleteGroupsRequest and DeleteGroupsResponse (API key 42)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class DeleteGroupsRequest(Message, kind="request", api_key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = field("0+")


class DeletableGroupResult(Struct):
    group_id: str = field("0+")
    error_code: int16 = field("0+")


class DeleteGroupsResponse(Message, kind="response", api_key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    results: list[DeletableGroupResult] = field("0+")
