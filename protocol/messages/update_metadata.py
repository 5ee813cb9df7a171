"""UpdateMetadataRequest and UpdateMetadataResponse (API key 6)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int16, int32, int64


class UpdateMetadataPartitionState(Struct):
    topic_name: str = field("0-4")
    partition_index: int32 = field("0+")
    controller_epoch: int32 = field("0+")
    leader: int32 = field("0+")
    leader_epoch: int32 = field("0+")
    isr: list[int32] = field("0+")
    zk_version: int32 = field("0+")
    replicas: list[int32] = field("0+")
    offline_replicas: list[int32] = field("4+")


class UpdateMetadataTopicState(Struct):
    topic_name: str = field("5+")
    topic_id: Uuid = field("7+")
    partition_states: list[UpdateMetadataPartitionState] = field("5+")


class UpdateMetadataEndpoint(Struct):
    port: int32 = field("1+")
    host: str = field("1+")
    listener: str = field("3+")
    security_protocol: int16 = field("1+")


class UpdateMetadataBroker(Struct):
    id: int32 = field("0+")
    v0_host: str = field("0")
    v0_port: int32 = field("0")
    endpoints: list[UpdateMetadataEndpoint] = field("1+")
    rack: str | None = field("2+", nullable="2+")


class UpdateMetadataRequest(Message, kind="request", api_key=6, versions="0-8", flexible="6+"):
    controller_id: int32 = field("0+")
    is_k_raft_controller: bool = field("8+")
    type: int8 = field("8+", tag=0, tagged="8+")
    controller_epoch: int32 = field("0+")
    broker_epoch: int64 = field("5+", default=-1)
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = field("0-4")
    topic_states: list[UpdateMetadataTopicState] = field("5+")
    live_brokers: list[UpdateMetadataBroker] = field("0+")


class UpdateMetadataResponse(Message, kind="response", api_key=6, versions="0-8", flexible="6+"):
    error_code: int16 = field("0+")
