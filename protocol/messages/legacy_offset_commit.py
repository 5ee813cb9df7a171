"""LegacyOffsetCommitKey and LegacyOffsetCommitValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int32, int64


class LegacyOffsetCommitKey(Message, kind="data", api_key=0, versions="0"):
    group: str = field("0+")
    topic: str = field("0+")
    partition: int32 = field("0+")


class LegacyOffsetCommitValue(Message, kind="data", api_key=0, versions="0"):
    offset: int64 = field("0+")
    metadata: str = field("0+")
    commit_timestamp: int64 = field("0+")
