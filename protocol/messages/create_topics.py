"""CreateTopicsRequest and CreateTopicsResponse (API key 19)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int8, int16, int32


class CreatableReplicaAssignment(Struct):
    partition_index: int32 = field("0+")
    broker_ids: list[int32] = field("0+")


class CreatableTopicConfig(Struct):
    name: str = field("0+")
    value: str | None = field("0+", nullable="0+")


class CreatableTopic(Struct):
    name: str = field("0+")
    num_partitions: int32 = field("0+")
    replication_factor: int16 = field("0+")
    assignments: list[CreatableReplicaAssignment] = field("0+")
    configs: list[CreatableTopicConfig] = field("0+")


class CreateTopicsRequest(Message, kind="request", api_key=19, versions="0-7", flexible="5+"):
    topics: list[CreatableTopic] = field("0+")
    timeout_ms: int32 = field("0+", default=60000)
    validate_only: bool = field("1+")


class CreatableTopicConfigs(Struct):
    name: str = field("5+")
    value: str | None = field("5+", nullable="5+")
    read_only: bool = field("5+")
    config_source: int8 = field("5+", default=-1)
    is_sensitive: bool = field("5+")


class CreatableTopicResult(Struct):
    name: str = field("0+")
    topic_id: Uuid = field("7+")
    error_code: int16 = field("0+")
    error_message: str | None = field("1+", nullable="1+")
    topic_config_error_code: int16 = field("5+", tag=0, tagged="5+")
    num_partitions: int32 = field("5+", default=-1)
    replication_factor: int16 = field("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = field("5+", nullable="5+")


class CreateTopicsResponse(Message, kind="response", api_key=19, versions="0-7", flexible="5+"):
    throttle_time_ms: int32 = field("2+")
    topics: list[CreatableTopicResult] = field("0+")
