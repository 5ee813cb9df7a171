"""StreamsGroupHeartbeatRequest and StreamsGroupHeartbeatResponse (API key 88)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32, int64, uint16


class KeyValue(Struct):
    key: str = field("0+")
    value: str = field("0+")


class TopicInfo(Struct):
    name: str = field("0+")
    partitions: int32 = field("0+")
    replication_factor: int16 = field("0+")
    topic_configs: list[KeyValue] = field("0+")


class CopartitionGroup(Struct):
    source_topics: list[int16] = field("0+")
    source_topic_regex: list[int16] = field("0+")
    repartition_source_topics: list[int16] = field("0+")


class Subtopology(Struct):
    subtopology_id: str = field("0+")
    source_topics: list[str] = field("0+")
    source_topic_regex: list[str] = field("0+")
    state_changelog_topics: list[TopicInfo] = field("0+")
    repartition_sink_topics: list[str] = field("0+")
    repartition_source_topics: list[TopicInfo] = field("0+")
    copartition_groups: list[CopartitionGroup] = field("0+")


class Topology(Struct):
    epoch: int32 = field("0+")
    subtopologies: list[Subtopology] = field("0+")


class TaskIds(Struct):
    subtopology_id: str = field("0+")
    partitions: list[int32] = field("0+")


class Endpoint(Struct):
    host: str = field("0+")
    port: uint16 = field("0+")


class TaskOffset(Struct):
    subtopology_id: str = field("0+")
    partition: int32 = field("0+")
    offset: int64 = field("0+")


class StreamsGroupHeartbeatRequest(Message, kind="request", api_key=88, versions="0", flexible="0+"):
    group_id: str = field("0+")
    member_id: str = field("0+")
    member_epoch: int32 = field("0+")
    endpoint_information_epoch: int32 = field("0+")
    instance_id: str | None = field("0+", nullable="0+", default=None)
    rack_id: str | None = field("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int32 = field("0+", default=-1)
    topology: Topology | None = field("0+", nullable="0+", default=None)
    active_tasks: list[TaskIds] | None = field("0+", nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = field("0+", nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = field("0+", nullable="0+", default=None)
    process_id: str | None = field("0+", nullable="0+", default=None)
    user_endpoint: Endpoint | None = field("0+", nullable="0+", default=None)
    client_tags: list[KeyValue] | None = field("0+", nullable="0+", default=None)
    task_offsets: list[TaskOffset] | None = field("0+", nullable="0+", default=None)
    task_end_offsets: list[TaskOffset] | None = field("0+", nullable="0+", default=None)
    shutdown_application: bool = field("0+")


class Status(Struct):
    status_code: int8 = field("0+")
    status_detail: str = field("0+")


class TopicPartition(Struct):
    topic: str = field("0+")
    partitions: list[int32] = field("0+")


class EndpointToPartitions(Struct):
    user_endpoint: Endpoint = field("0+")
    active_partitions: list[TopicPartition] = field("0+")
    standby_partitions: list[TopicPartition] = field("0+")


class StreamsGroupHeartbeatResponse(Message, kind="response", api_key=88, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    member_id: str = field("0+")
    member_epoch: int32 = field("0+")
    heartbeat_interval_ms: int32 = field("0+")
    acceptable_recovery_lag: int32 = field("0+")
    task_offset_interval_ms: int32 = field("0+")
    status: list[Status] | None = field("0+", nullable="0+")
    active_tasks: list[TaskIds] | None = field("0+", nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = field("0+", nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = field("0+", nullable="0+", default=None)
    endpoint_information_epoch: int32 = field("0+")
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field("0+", nullable="0+", default=None)
