"""MetadataRequest and MetadataResponse (API key 3)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32


class MetadataRequestTopic(Struct):
    topic_id: Uuid = field("10+")
    name: str | None = field("0+", nullable="10+")


class MetadataRequest(Message, kind="request", api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = field("0+", nullable="1+")
    allow_auto_topic_creation: bool = field("4+", default=True)
    include_cluster_authorized_operations: bool = field("8-10")
    include_topic_authorized_operations: bool = field("8+")


class MetadataResponseBroker(Struct):
    node_id: int32 = field("0+")
    host: str = field("0+")
    port: int32 = field("0+")
    rack: str | None = field("1+", nullable="1+", default=None)


class MetadataResponsePartition(Struct):
    error_code: int16 = field("0+")
    partition_index: int32 = field("0+")
    leader_id: int32 = field("0+")
    leader_epoch: int32 = field("7+", default=-1)
    replica_nodes: list[int32] = field("0+")
    isr_nodes: list[int32] = field("0+")
    offline_replicas: list[int32] = field("5+")


class MetadataResponseTopic(Struct):
    error_code: int16 = field("0+")
    name: str | None = field("0+", nullable="12+")
    topic_id: Uuid = field("10+")
    is_internal: bool = field("1+")
    partitions: list[MetadataResponsePartition] = field("0+")
    topic_authorized_operations: int32 = field("8+", default=-2147483648)


class MetadataResponse(Message, kind="response", api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int32 = field("3+")
    brokers: list[MetadataResponseBroker] = field("0+")
    cluster_id: str | None = field("2+", nullable="2+", default=None)
    controller_id: int32 = field("1+", default=-1)
    topics: list[MetadataResponseTopic] = field("0+")
    cluster_authorized_operations: int32 = field("8-10", default=-2147483648)
    error_code: int16 = field("13+")
