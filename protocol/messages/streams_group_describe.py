"""StreamsGroupDescribeRequest and StreamsGroupDescribeResponse (API key 89)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64, uint16


class StreamsGroupDescribeRequest(Message, kind="request", api_key=89, versions="0", flexible="0+"):
    group_ids: list[str] = field("0+")
    include_authorized_operations: bool = field("0+")


class KeyValue(Struct):
    key: str = field("0+")
    value: str = field("0+")


class TopicInfo(Struct):
    name: str = field("0+")
    partitions: int32 = field("0+")
    replication_factor: int16 = field("0+")
    topic_configs: list[KeyValue] = field("0+")


class Subtopology(Struct):
    subtopology_id: str = field("0+")
    source_topics: list[str] = field("0+")
    repartition_sink_topics: list[str] = field("0+")
    state_changelog_topics: list[TopicInfo] = field("0+")
    repartition_source_topics: list[TopicInfo] = field("0+")


class Topology(Struct):
    epoch: int32 = field("0+")
    subtopologies: list[Subtopology] | None = field("0+", nullable="0+", default=None)


class Endpoint(Struct):
    host: str = field("0+")
    port: uint16 = field("0+")


class TaskOffset(Struct):
    subtopology_id: str = field("0+")
    partition: int32 = field("0+")
    offset: int64 = field("0+")


class TaskIds(Struct):
    subtopology_id: str = field("0+")
    partitions: list[int32] = field("0+")


class Assignment(Struct):
    active_tasks: list[TaskIds] = field("0+")
    standby_tasks: list[TaskIds] = field("0+")
    warmup_tasks: list[TaskIds] = field("0+")


class Member(Struct):
    member_id: str = field("0+")
    member_epoch: int32 = field("0+")
    instance_id: str | None = field("0+", nullable="0+", default=None)
    rack_id: str | None = field("0+", nullable="0+", default=None)
    client_id: str = field("0+")
    client_host: str = field("0+")
    topology_epoch: int32 = field("0+")
    process_id: str = field("0+")
    user_endpoint: Endpoint | None = field("0+", nullable="0+", default=None)
    client_tags: list[KeyValue] = field("0+")
    task_offsets: list[TaskOffset] = field("0+")
    task_end_offsets: list[TaskOffset] = field("0+")
    assignment: Assignment = field("0+")
    target_assignment: Assignment = field("0+")
    is_classic: bool = field("0+")


class DescribedGroup(Struct):
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    group_id: str = field("0+")
    group_state: str = field("0+")
    group_epoch: int32 = field("0+")
    assignment_epoch: int32 = field("0+")
    topology: Topology | None = field("0+", nullable="0+", default=None)
    members: list[Member] = field("0+")
    authorized_operations: int32 = field("0+", default=-2147483648)


class StreamsGroupDescribeResponse(Message, kind="response", api_key=89, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    groups: list[DescribedGroup] = field("0+")
