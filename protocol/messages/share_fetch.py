"""ShareFetchRequest and ShareFetchResponse (API key 78)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Records, Uuid, int8, int16, int32, int64


class AcknowledgementBatch(Struct):
    first_offset: int64 = field("0+")
    last_offset: int64 = field("0+")
    acknowledge_types: list[int8] = field("0+")


class FetchPartition(Struct):
    partition_index: int32 = field("0+")
    partition_max_bytes: int32 = field("0")
    acknowledgement_batches: list[AcknowledgementBatch] = field("0+")


class FetchTopic(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[FetchPartition] = field("0+")


class ForgottenTopic(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[int32] = field("0+")


class ShareFetchRequest(Message, kind="request", api_key=78, versions="0-2", flexible="0+"):
    group_id: str | None = field("0+", nullable="0+", default=None)
    member_id: str | None = field("0+", nullable="0+")
    share_session_epoch: int32 = field("0+")
    max_wait_ms: int32 = field("0+")
    min_bytes: int32 = field("0+")
    max_bytes: int32 = field("0+", default=0x7fffffff)
    max_records: int32 = field("1+")
    batch_size: int32 = field("1+")
    share_acquire_mode: int8 = field("2+")
    is_renew_ack: bool = field("2+")
    topics: list[FetchTopic] = field("0+")
    forgotten_topics_data: list[ForgottenTopic] = field("0+")


class LeaderIdAndEpoch(Struct):
    leader_id: int32 = field("0+")
    leader_epoch: int32 = field("0+")


class AcquiredRecords(Struct):
    first_offset: int64 = field("0+")
    last_offset: int64 = field("0+")
    delivery_count: int16 = field("0+")


class PartitionData(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    acknowledge_error_code: int16 = field("0+")
    acknowledge_error_message: str | None = field("0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = field("0+")
    records: Records | None = field("0+", nullable="0")
    acquired_records: list[AcquiredRecords] = field("0+")


class ShareFetchableTopicResponse(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[PartitionData] = field("0+")


class NodeEndpoint(Struct):
    node_id: int32 = field("0+")
    host: str = field("0+")
    port: int32 = field("0+")
    rack: str | None = field("0+", nullable="0+", default=None)


class ShareFetchResponse(Message, kind="response", api_key=78, versions="0-2", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int32 = field("1+")
    responses: list[ShareFetchableTopicResponse] = field("0+")
    node_endpoints: list[NodeEndpoint] = field("0+")
