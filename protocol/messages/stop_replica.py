"""StopReplicaRequest and StopReplicaResponse (API key 5)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class StopReplicaPartitionV0(Struct):
    topic_name: str = field("0")
    partition_index: int32 = field("0")


class StopReplicaTopicV1(Struct):
    name: str = field("1-2")
    partition_indexes: list[int32] = field("1-2")


class StopReplicaPartitionState(Struct):
    partition_index: int32 = field("3+")
    leader_epoch: int32 = field("3+", default=-1)
    delete_partition: bool = field("3+")


class StopReplicaTopicState(Struct):
    topic_name: str = field("3+")
    partition_states: list[StopReplicaPartitionState] = field("3+")


class StopReplicaRequest(Message, kind="request", api_key=5, versions="0-4", flexible="2+"):
    controller_id: int32 = field("0+")
    is_k_raft_controller: bool = field("4+")
    controller_epoch: int32 = field("0+")
    broker_epoch: int64 = field("1+", default=-1)
    delete_partitions: bool = field("0-2")
    ungrouped_partitions: list[StopReplicaPartitionV0] = field("0")
    topics: list[StopReplicaTopicV1] = field("1-2")
    topic_states: list[StopReplicaTopicState] = field("3+")


class StopReplicaPartitionError(Struct):
    topic_name: str = field("0+")
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")


class StopReplicaResponse(Message, kind="response", api_key=5, versions="0-4", flexible="2+"):
    error_code: int16 = field("0+")
    partition_errors: list[StopReplicaPartitionError] = field("0+")
