"""RemoveRaftVoterRequest and RemoveRaftVoterResponse (API key 81)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import Uuid, int16, int32


class RemoveRaftVoterRequest(Message, kind="request", api_key=81, versions="0", flexible="0+"):
    cluster_id: str | None = field("0+", nullable="0+")
    voter_id: int32 = field("0+")
    voter_directory_id: Uuid = field("0+")


class RemoveRaftVoterResponse(Message, kind="response", api_key=81, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
