"""ConsumerGroupMemberMetadataKey and ConsumerGroupMemberMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int32


class ConsumerGroupMemberMetadataKey(Message, kind="data", api_key=5, versions="0"):
    group_id: str = field("0+")
    member_id: str = field("0+")


class ClassicProtocol(Struct):
    name: str = field("0+")
    metadata: bytes = field("0+")


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int32 = field("0+")
    supported_protocols: list[ClassicProtocol] = field("0+")


class ConsumerGroupMemberMetadataValue(Message, kind="data", api_key=5, versions="0", flexible="0+"):
    instance_id: str | None = field("0+", nullable="0+")
    rack_id: str | None = field("0+", nullable="0+")
    client_id: str = field("0+")
    client_host: str = field("0+")
    subscribed_topic_names: list[str] = field("0+")
    subscribed_topic_regex: str | None = field("0+", nullable="0+")
    rebalance_timeout_ms: int32 = field("0+", default=-1)
    server_assignor: str | None = field("0+", nullable="0+")
    # Its default is not null: Kafka writes a null down. Where the field is missing, none is meant all the same.
    classic_member_metadata: ClassicMemberMetadata | None = field("0+", nullable="0+", tag=0, tagged="0+")
