"""DescribeTransactionsRequest and DescribeTransactionsResponse (API key 65)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class DescribeTransactionsRequest(Message, kind="request", api_key=65, versions="0", flexible="0+"):
    transactional_ids: list[str] = field("0+")


class TopicData(Struct):
    topic: str = field("0+")
    partitions: list[int32] = field("0+")


class TransactionState(Struct):
    error_code: int16 = field("0+")
    transactional_id: str = field("0+")
    transaction_state: str = field("0+")
    transaction_timeout_ms: int32 = field("0+")
    transaction_start_time_ms: int64 = field("0+")
    producer_id: int64 = field("0+")
    producer_epoch: int16 = field("0+")
    topics: list[TopicData] = field("0+")


class DescribeTransactionsResponse(Message, kind="response", api_key=65, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    transaction_states: list[TransactionState] = field("0+")
