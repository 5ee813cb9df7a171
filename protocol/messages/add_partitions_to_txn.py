"""AddPartitionsToTxnRequest and AddPartitionsToTxnResponse (API key 24)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class AddPartitionsToTxnTopic(Struct):
    name: str = field("0+")
    partitions: list[int32] = field("0+")


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = field("4+")
    producer_id: int64 = field("4+")
    producer_epoch: int16 = field("4+")
    verify_only: bool = field("4+")
    topics: list[AddPartitionsToTxnTopic] = field("4+")


class AddPartitionsToTxnRequest(Message, kind="request", api_key=24, versions="0-5", flexible="3+"):
    transactions: list[AddPartitionsToTxnTransaction] = field("4+")
    v3_and_below_transactional_id: str = field("0-3")
    v3_and_below_producer_id: int64 = field("0-3")
    v3_and_below_producer_epoch: int16 = field("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field("0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int32 = field("0+")
    partition_error_code: int16 = field("0+")


class AddPartitionsToTxnTopicResult(Struct):
    name: str = field("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field("0+")


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = field("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = field("4+")


class AddPartitionsToTxnResponse(Message, kind="response", api_key=24, versions="0-5", flexible="3+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = field("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field("0-3")
