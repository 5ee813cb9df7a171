"""ShareGroupHeartbeatRequest and ShareGroupHeartbeatResponse (API key 76)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32


class ShareGroupHeartbeatRequest(Message, kind="request", api_key=76, versions="0-1", flexible="0+"):
    group_id: str = field("0+")
    member_id: str = field("0+")
    member_epoch: int32 = field("0+")
    rack_id: str | None = field("0+", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = field("0+", nullable="0+", default=None)


class TopicPartitions(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[int32] = field("0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field("0+")


class ShareGroupHeartbeatResponse(Message, kind="response", api_key=76, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    member_id: str | None = field("0+", nullable="0+", default=None)
    member_epoch: int32 = field("0+")
    heartbeat_interval_ms: int32 = field("0+")
    assignment: Assignment | None = field("0+", nullable="0+", default=None)
