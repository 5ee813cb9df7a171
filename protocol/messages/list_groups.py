"""ListGroupsRequest and ListGroupsResponse (API key 16)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class ListGroupsRequest(Message, kind="request", api_key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = field("4+")
    types_filter: list[str] = field("5+")


class ListedGroup(Struct):
    group_id: str = field("0+")
    protocol_type: str = field("0+")
    group_state: str = field("4+")
    group_type: str = field("5+")


class ListGroupsResponse(Message, kind="response", api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int32 = field("1+")
    error_code: int16 = field("0+")
    groups: list[ListedGroup] = field("0+")
