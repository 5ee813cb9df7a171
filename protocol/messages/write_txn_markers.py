"""WriteTxnMarkersRequest and WriteTxnMarkersResponse (API key 27)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32, int64


class WritableTxnMarkerTopic(Struct):
    name: str = field("0+")
    partition_indexes: list[int32] = field("0+")


class WritableTxnMarker(Struct):
    producer_id: int64 = field("0+")
    producer_epoch: int16 = field("0+")
    transaction_result: bool = field("0+")
    topics: list[WritableTxnMarkerTopic] = field("0+")
    coordinator_epoch: int32 = field("0+")
    transaction_version: int8 = field("2+")


class WriteTxnMarkersRequest(Message, kind="request", api_key=27, versions="0-2", flexible="1+"):
    markers: list[WritableTxnMarker] = field("0+")


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")


class WritableTxnMarkerTopicResult(Struct):
    name: str = field("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = field("0+")


class WritableTxnMarkerResult(Struct):
    producer_id: int64 = field("0+")
    topics: list[WritableTxnMarkerTopicResult] = field("0+")


class WriteTxnMarkersResponse(Message, kind="response", api_key=27, versions="0-2", flexible="1+"):
    markers: list[WritableTxnMarkerResult] = field("0+")
