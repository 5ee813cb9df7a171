"""DeleteShareGroupOffsetsRequest and DeleteShareGroupOffsetsResponse (API key 92)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field("0+")


class DeleteShareGroupOffsetsRequest(Message, kind="request", api_key=92, versions="0", flexible="0+"):
    group_id: str = field("0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field("0+")


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field("0+")
    topic_id: Uuid = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Message, kind="response", api_key=92, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field("0+")
