"""LeaderAndIsrRequest and LeaderAndIsrResponse (API key 4)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int16, int32, int64


class LeaderAndIsrPartitionState(Struct):
    topic_name: str = field("0-1")
    partition_index: int32 = field("0+")
    controller_epoch: int32 = field("0+")
    leader: int32 = field("0+")
    leader_epoch: int32 = field("0+")
    isr: list[int32] = field("0+")
    partition_epoch: int32 = field("0+")
    replicas: list[int32] = field("0+")
    adding_replicas: list[int32] = field("3+")
    removing_replicas: list[int32] = field("3+")
    is_new: bool = field("1+")
    leader_recovery_state: int8 = field("6+")


class LeaderAndIsrTopicState(Struct):
    topic_name: str = field("2+")
    topic_id: Uuid = field("5+")
    partition_states: list[LeaderAndIsrPartitionState] = field("2+")


class LeaderAndIsrLiveLeader(Struct):
    broker_id: int32 = field("0+")
    host_name: str = field("0+")
    port: int32 = field("0+")


class LeaderAndIsrRequest(Message, kind="request", api_key=4, versions="0-7", flexible="4+"):
    controller_id: int32 = field("0+")
    is_k_raft_controller: bool = field("7+")
    controller_epoch: int32 = field("0+")
    broker_epoch: int64 = field("2+", default=-1)
    type: int8 = field("5+")
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = field("0-1")
    topic_states: list[LeaderAndIsrTopicState] = field("2+")
    live_leaders: list[LeaderAndIsrLiveLeader] = field("0+")


class LeaderAndIsrPartitionError(Struct):
    topic_name: str = field("0-4")
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")


class LeaderAndIsrTopicError(Struct):
    topic_id: Uuid = field("5+")
    partition_errors: list[LeaderAndIsrPartitionError] = field("5+")


class LeaderAndIsrResponse(Message, kind="response", api_key=4, versions="0-7", flexible="4+"):
    error_code: int16 = field("0+")
    partition_errors: list[LeaderAndIsrPartitionError] = field("0-4")
    topics: list[LeaderAndIsrTopicError] = field("5+")
