"""ElectLeadersRequest and ElectLeadersResponse (API key 43)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class TopicPartitions(Struct):
    topic: str = field("0+")
    partitions: list[int32] = field("0+")


class ElectLeadersRequest(Message, kind="request", api_key=43, versions="0-2", flexible="2+"):
    election_type: int8 = field("1+")
    topic_partitions: list[TopicPartitions] | None = field("0+", nullable="0+")
    timeout_ms: int32 = field("0+", default=60000)


class PartitionResult(Struct):
    partition_id: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")


class ReplicaElectionResult(Struct):
    topic: str = field("0+")
    partition_result: list[PartitionResult] = field("0+")


class ElectLeadersResponse(Message, kind="response", api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("1+")
    replica_election_results: list[ReplicaElectionResult] = field("0+")
