"""ListTransactionsRequest and ListTransactionsResponse (API key 66)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class ListTransactionsRequest(Message, kind="request", api_key=66, versions="0-2", flexible="0+"):
    state_filters: list[str] = field("0+")
    producer_id_filters: list[int64] = field("0+")
    duration_filter: int64 = field("1+", default=-1)
    transactional_id_pattern: str | None = field("2+", nullable="2+", default=None)


class TransactionState(Struct):
    transactional_id: str = field("0+")
    producer_id: int64 = field("0+")
    transaction_state: str = field("0+")


class ListTransactionsResponse(Message, kind="response", api_key=66, versions="0-2", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    unknown_state_filters: list[str] = field("0+")
    transaction_states: list[TransactionState] = field("0+")
