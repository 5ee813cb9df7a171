"""FetchRequest and FetchResponse (API key 1)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Records, Uuid, int8, int16, int32, int64


class ReplicaState(Struct):
    replica_id: int32 = field("15+", default=-1)
    replica_epoch: int64 = field("15+", default=-1)


class FetchPartition(Struct):
    partition: int32 = field("0+")
    current_leader_epoch: int32 = field("9+", default=-1)
    fetch_offset: int64 = field("0+")
    last_fetched_epoch: int32 = field("12+", default=-1)
    log_start_offset: int64 = field("5+", default=-1)
    partition_max_bytes: int32 = field("0+")
    replica_directory_id: Uuid = field("17+", tag=0, tagged="17+")
    high_watermark: int64 = field("18+", tag=1, tagged="18+", default=9223372036854775807)


class FetchTopic(Struct):
    topic: str = field("0-12")
    topic_id: Uuid = field("13+")
    partitions: list[FetchPartition] = field("0+")


class ForgottenTopic(Struct):
    topic: str = field("7-12")
    topic_id: Uuid = field("13+")
    partitions: list[int32] = field("7+")


class FetchRequest(Message, kind="request", api_key=1, versions="0-18", flexible="12+"):
    cluster_id: str | None = field("12+", nullable="12+", tag=0, tagged="12+", default=None)
    replica_id: int32 = field("0-14", default=-1)
    replica_state: ReplicaState = field("15+", tag=1, tagged="15+")
    max_wait_ms: int32 = field("0+")
    min_bytes: int32 = field("0+")
    max_bytes: int32 = field("3+", default=0x7fffffff)
    isolation_level: int8 = field("4+")
    session_id: int32 = field("7+")
    session_epoch: int32 = field("7+", default=-1)
    topics: list[FetchTopic] = field("0+")
    forgotten_topics_data: list[ForgottenTopic] = field("7+")
    rack_id: str = field("11+")


class EpochEndOffset(Struct):
    epoch: int32 = field("12+", default=-1)
    end_offset: int64 = field("12+", default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int32 = field("12+", default=-1)
    leader_epoch: int32 = field("12+", default=-1)


class SnapshotId(Struct):
    end_offset: int64 = field("0+", default=-1)
    epoch: int32 = field("0+", default=-1)


class AbortedTransaction(Struct):
    producer_id: int64 = field("4+")
    first_offset: int64 = field("4+")


class PartitionData(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")
    high_watermark: int64 = field("0+")
    last_stable_offset: int64 = field("4+", default=-1)
    log_start_offset: int64 = field("5+", default=-1)
    diverging_epoch: EpochEndOffset = field("12+", tag=0, tagged="12+")
    current_leader: LeaderIdAndEpoch = field("12+", tag=1, tagged="12+")
    snapshot_id: SnapshotId = field("12+", tag=2, tagged="12+")
    aborted_transactions: list[AbortedTransaction] | None = field("4+", nullable="4+")
    preferred_read_replica: int32 = field("11+", default=-1)
    records: Records | None = field("0+", nullable="0+")


class FetchableTopicResponse(Struct):
    topic: str = field("0-12")
    topic_id: Uuid = field("13+")
    partitions: list[PartitionData] = field("0+")


class NodeEndpoint(Struct):
    node_id: int32 = field("16+")
    host: str = field("16+")
    port: int32 = field("16+")
    rack: str | None = field("16+", nullable="16+", default=None)


class FetchResponse(Message, kind="response", api_key=1, versions="0-18", flexible="12+"):
    throttle_time_ms: int32 = field("1+")
    error_code: int16 = field("7+")
    session_id: int32 = field("7+")
    responses: list[FetchableTopicResponse] = field("0+")
    node_endpoints: list[NodeEndpoint] = field("16+", tag=0, tagged="16+")
