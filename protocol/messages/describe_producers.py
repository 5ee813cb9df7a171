"""DescribeProducersRequest and DescribeProducersResponse (API key 61)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class TopicRequest(Struct):
    name: str = field("0+")
    partition_indexes: list[int32] = field("0+")


class DescribeProducersRequest(Message, kind="request", api_key=61, versions="0", flexible="0+"):
    topics: list[TopicRequest] = field("0+")


class ProducerState(Struct):
    producer_id: int64 = field("0+")
    producer_epoch: int32 = field("0+")
    last_sequence: int32 = field("0+", default=-1)
    last_timestamp: int64 = field("0+", default=-1)
    coordinator_epoch: int32 = field("0+")
    current_txn_start_offset: int64 = field("0+", default=-1)


class PartitionResponse(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = field("0+")


class TopicResponse(Struct):
    name: str = field("0+")
    partitions: list[PartitionResponse] = field("0+")


class DescribeProducersResponse(Message, kind="response", api_key=61, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    topics: list[TopicResponse] = field("0+")
