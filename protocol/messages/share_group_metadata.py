"""ShareGroupMetadataKey and ShareGroupMetadataValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int32, int64


class ShareGroupMetadataKey(Message, kind="data", api_key=11, versions="0"):
    group_id: str = field("0+")


class ShareGroupMetadataValue(Message, kind="data", api_key=11, versions="0", flexible="0+"):
    epoch: int32 = field("0+")
    metadata_hash: int64 = field("0+")
