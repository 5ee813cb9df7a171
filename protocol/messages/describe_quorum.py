"""DescribeQuorumRequest and DescribeQuorumResponse (API key 55)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32, int64, uint16


class PartitionData(Struct):
    partition_index: int32 = field("0+")


class TopicData(Struct):
    topic_name: str = field("0+")
    partitions: list[PartitionData] = field("0+")


class DescribeQuorumRequest(Message, kind="request", api_key=55, versions="0-2", flexible="0+"):
    topics: list[TopicData] = field("0+")


class ReplicaState(Struct):
    replica_id: int32 = field("0+")
    replica_directory_id: Uuid = field("2+")
    log_end_offset: int64 = field("0+")
    last_fetch_timestamp: int64 = field("1+", default=-1)
    last_caught_up_timestamp: int64 = field("1+", default=-1)


class ResponsePartitionData(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("2+", nullable="2+")
    leader_id: int32 = field("0+")
    leader_epoch: int32 = field("0+")
    high_watermark: int64 = field("0+")
    current_voters: list[ReplicaState] = field("0+")
    observers: list[ReplicaState] = field("0+")


class ResponseTopicData(Struct):
    topic_name: str = field("0+")
    partitions: list[ResponsePartitionData] = field("0+")


class Listener(Struct):
    name: str = field("2+")
    host: str = field("2+")
    port: uint16 = field("2+")


class Node(Struct):
    node_id: int32 = field("2+")
    listeners: list[Listener] = field("2+")


class DescribeQuorumResponse(Message, kind="response", api_key=55, versions="0-2", flexible="0+"):
    error_code: int16 = field("0+")
    error_message: str | None = field("2+", nullable="2+")
    topics: list[ResponseTopicData] = field("0+")
    nodes: list[Node] = field("2+")
