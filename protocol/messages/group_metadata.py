"""GroupMetadataKey and GroupMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int32, int64


class GroupMetadataKey(Message, kind="data", api_key=2, versions="0"):
    group: str = field("0+")


class MemberMetadata(Struct):
    member_id: str = field("0+")
    group_instance_id: str | None = field("3+", nullable="3+", default=None)
    client_id: str = field("0+")
    client_host: str = field("0+")
    rebalance_timeout: int32 = field("1+", default=-1)
    session_timeout: int32 = field("0+")
    subscription: bytes = field("0+")
    assignment: bytes = field("0+")


class GroupMetadataValue(Message, kind="data", api_key=2, versions="0-4", flexible="4+"):
    protocol_type: str = field("0+")
    generation: int32 = field("0+")
    protocol: str | None = field("0+", nullable="0+")
    leader: str | None = field("0+", nullable="0+")
    current_state_timestamp: int64 = field("2+", default=-1)
    members: list[MemberMetadata] = field("0+")
