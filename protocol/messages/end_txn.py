"""EndTxnRequest and EndTxnResponse (API key 26)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int32, int64


class EndTxnRequest(Message, kind="request", api_key=26, versions="0-5", flexible="3+"):
    transactional_id: str = field("0+")
    producer_id: int64 = field("0+")
    producer_epoch: int16 = field("0+")
    committed: bool = field("0+")


class EndTxnResponse(Message, kind="response", api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    producer_id: int64 = field("5+", default=-1)
    producer_epoch: int16 = field("5+", default=-1)
