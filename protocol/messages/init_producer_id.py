"""InitProducerIdRequest and InitProducerIdResponse (API key 22)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16, int32, int64


class InitProducerIdRequest(Message, kind="request", api_key=22, versions="0-6", flexible="2+"):
    transactional_id: str | None = field("0+", nullable="0+")
    transaction_timeout_ms: int32 = field("0+")
    producer_id: int64 = field("3+", default=-1)
    producer_epoch: int16 = field("3+", default=-1)
    enable2_pc: bool = field("6+")
    keep_prepared_txn: bool = field("6+")


class InitProducerIdResponse(Message, kind="response", api_key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    producer_id: int64 = field("0+", default=-1)
    producer_epoch: int16 = field("0+")
    ongoing_txn_producer_id: int64 = field("6+", default=-1)
    ongoing_txn_producer_epoch: int16 = field("6+", default=-1)
