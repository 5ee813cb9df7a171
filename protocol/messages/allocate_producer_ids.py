"""AllocateProducerIdsRequest and AllocateProducerIdsResponse (API key 67)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int32, int64


class AllocateProducerIdsRequest(Message, kind="request", api_key=67, versions="0", flexible="0+"):
    broker_id: int32 = field("0+")
    broker_epoch: int64 = field("0+", default=-1)


class AllocateProducerIdsResponse(Message, kind="response", api_key=67, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    producer_id_start: int64 = field("0+")
    producer_id_len: int32 = field("0+")
