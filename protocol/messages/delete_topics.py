"""DeleteTopicsRequest and DeleteTopicsResponse (API key 20)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32


class DeleteTopicState(Struct):
    name: str | None = field("6+", nullable="6+", default=None)
    topic_id: Uuid = field("6+")


class DeleteTopicsRequest(Message, kind="request", api_key=20, versions="0-6", flexible="4+"):
    topics: list[DeleteTopicState] = field("6+")
    topic_names: list[str] = field("0-5")
    timeout_ms: int32 = field("0+")


class DeletableTopicResult(Struct):
    name: str | None = field("0+", nullable="6+")
    topic_id: Uuid = field("6+")
    error_code: int16 = field("0+")
    error_message: str | None = field("5+", nullable="5+", default=None)


class DeleteTopicsResponse(Message, kind="response", api_key=20, versions="0-6", flexible="4+"):
    throttle_time_ms: int32 = field("1+")
    responses: list[DeletableTopicResult] = field("0+")
