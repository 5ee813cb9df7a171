"""ProduceRequest and ProduceResponse (API key 0)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Records, Uuid, int16, int32, int64


class PartitionProduceData(Struct):
    index: int32 = field("0+")
    records: Records | None = field("0+", nullable="0+")


class TopicProduceData(Struct):
    name: str = field("0-12")
    topic_id: Uuid = field("13+")
    partition_data: list[PartitionProduceData] = field("0+")


class ProduceRequest(Message, kind="request", api_key=0, versions="0-13", flexible="9+"):
    transactional_id: str | None = field("3+", nullable="3+", default=None)
    acks: int16 = field("0+")
    timeout_ms: int32 = field("0+")
    topic_data: list[TopicProduceData] = field("0+")


class BatchIndexAndErrorMessage(Struct):
    batch_index: int32 = field("8+")
    batch_index_error_message: str | None = field("8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: int32 = field("10+", default=-1)
    leader_epoch: int32 = field("10+", default=-1)


class PartitionProduceResponse(Struct):
    index: int32 = field("0+")
    error_code: int16 = field("0+")
    base_offset: int64 = field("0+")
    log_append_time_ms: int64 = field("2+", default=-1)
    log_start_offset: int64 = field("5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field("8+")
    error_message: str | None = field("8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch = field("10+", tag=0, tagged="10+")


class TopicProduceResponse(Struct):
    name: str = field("0-12")
    topic_id: Uuid = field("13+")
    partition_responses: list[PartitionProduceResponse] = field("0+")


class NodeEndpoint(Struct):
    node_id: int32 = field("10+")
    host: str = field("10+")
    port: int32 = field("10+")
    rack: str | None = field("10+", nullable="10+", default=None)


class ProduceResponse(Message, kind="response", api_key=0, versions="0-13", flexible="9+"):
    responses: list[TopicProduceResponse] = field("0+")
    throttle_time_ms: int32 = field("1+")
    node_endpoints: list[NodeEndpoint] = field("10+", tag=0, tagged="10+")
