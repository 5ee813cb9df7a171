"""ConsumerGroupRegularExpressionKey and ConsumerGroupRegularExpressionValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int64


class ConsumerGroupRegularExpressionKey(Message, kind="data", api_key=16, versions="0"):
    group_id: str = field("0+")
    regular_expression: str = field("0+")


class ConsumerGroupRegularExpressionValue(Message, kind="data", api_key=16, versions="0", flexible="0+"):
    topics: list[str] = field("0+")
    version: int64 = field("0+")
    timestamp: int64 = field("0+")
