"""AddRaftVoterRequest and AddRaftVoterResponse (API key 80)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import Uuid, int16, int32, uint16


class Listener(Struct):
    name: str = field("0+")
    host: str = field("0+")
    port: uint16 = field("0+")


class AddRaftVoterRequest(Message, kind="request", api_key=80, versions="0-1", flexible="0+"):
    cluster_id: str | None = field("0+", nullable="0+")
    timeout_ms: int32 = field("0+")
    voter_id: int32 = field("0+")
    voter_directory_id: Uuid = field("0+")
    listeners: list[Listener] = field("0+")
    ack_when_committed: bool = field("1+", default=True)


class AddRaftVoterResponse(Message, kind="response", api_key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
