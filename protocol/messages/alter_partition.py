"""AlterPartitionRequest and AlterPartitionResponse (API key 56)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int16, int32, int64


class BrokerState(Struct):
    broker_id: int32 = field("3+")
    broker_epoch: int64 = field("3+", default=-1)


class PartitionData(Struct):
    partition_index: int32 = field("0+")
    leader_epoch: int32 = field("0+")
    new_isr: list[int32] = field("0-2")
    new_isr_with_epochs: list[BrokerState] = field("3+")
    leader_recovery_state: int8 = field("1+")
    partition_epoch: int32 = field("0+")


class TopicData(Struct):
    topic_name: str = field("0-1")
    topic_id: Uuid = field("2+")
    partitions: list[PartitionData] = field("0+")


class AlterPartitionRequest(Message, kind="request", api_key=56, versions="0-3", flexible="0+"):
    broker_id: int32 = field("0+")
    broker_epoch: int64 = field("0+", default=-1)
    topics: list[TopicData] = field("0+")


class ResponsePartitionData(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")
    leader_id: int32 = field("0+")
    leader_epoch: int32 = field("0+")
    isr: list[int32] = field("0+")
    leader_recovery_state: int8 = field("1+")
    partition_epoch: int32 = field("0+")


class ResponseTopicData(Struct):
    topic_name: str = field("0-1")
    topic_id: Uuid = field("2+")
    partitions: list[ResponsePartitionData] = field("0+")


class AlterPartitionResponse(Message, kind="response", api_key=56, versions="0-3", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    topics: list[ResponseTopicData] = field("0+")
