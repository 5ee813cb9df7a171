"""ShareGroupMemberMetadataKey and ShareGroupMemberMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field


class ShareGroupMemberMetadataKey(Message, kind="data", api_key=10, versions="0"):
    group_id: str = field("0+")
    member_id: str = field("0+")


class ShareGroupMemberMetadataValue(Message, kind="data", api_key=10, versions="0", flexible="0+"):
    rack_id: str | None = field("0+", nullable="0+")
    client_id: str = field("0+")
    client_host: str = field("0+")
    subscribed_topic_names: list[str] = field("0+")
