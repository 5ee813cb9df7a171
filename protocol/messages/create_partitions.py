"""CreatePartitionsRequest and CreatePartitionsResponse (API key 37)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int32] = field("0+")


class CreatePartitionsTopic(Struct):
    name: str = field("0+")
    count: int32 = field("0+")
    assignments: list[CreatePartitionsAssignment] | None = field("0+", nullable="0+")


class CreatePartitionsRequest(Message, kind="request", api_key=37, versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsTopic] = field("0+")
    timeout_ms: int32 = field("0+")
    validate_only: bool = field("0+")


class CreatePartitionsTopicResult(Struct):
    name: str = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Message, kind="response", api_key=37, versions="0-3", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    results: list[CreatePartitionsTopicResult] = field("0+")
