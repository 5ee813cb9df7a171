"""StreamsGroupMemberMetadataKey and StreamsGroupMemberMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int32, uint16


class StreamsGroupMemberMetadataKey(Message, kind="data", api_key=19, versions="0"):
    group_id: str = field("0+")
    member_id: str = field("0+")


class Endpoint(Struct):
    host: str = field("0+")
    port: uint16 = field("0+")


class KeyValue(Struct):
    key: str = field("0+")
    value: str = field("0+")


class StreamsGroupMemberMetadataValue(Message, kind="data", api_key=19, versions="0", flexible="0+"):
    instance_id: str | None = field("0+", nullable="0+")
    rack_id: str | None = field("0+", nullable="0+")
    client_id: str = field("0+")
    client_host: str = field("0+")
    rebalance_timeout_ms: int32 = field("0+", default=-1)
    topology_epoch: int32 = field("0+")
    process_id: str = field("0+")
    user_endpoint: Endpoint | None = field("0+", nullable="0+", default=None)
    client_tags: list[KeyValue] = field("0+")
