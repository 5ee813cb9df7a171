"""AlterReplicaLogDirsRequest and AlterReplicaLogDirsResponse (API key 34)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class AlterReplicaLogDirTopic(Struct):
    name: str = field("0+")
    partitions: list[int32] = field("0+")


class AlterReplicaLogDir(Struct):
    path: str = field("0+")
    topics: list[AlterReplicaLogDirTopic] = field("0+")


class AlterReplicaLogDirsRequest(Message, kind="request", api_key=34, versions="0-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = field("0+")


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int32 = field("0+")
    error_code: int16 = field("0+")


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = field("0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = field("0+")


class AlterReplicaLogDirsResponse(Message, kind="response", api_key=34, versions="0-2", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    results: list[AlterReplicaLogDirTopicResult] = field("0+")
