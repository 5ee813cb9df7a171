"""TransactionLogKey and TransactionLogValue."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32, int64


class TransactionLogKey(Message, kind="data", api_key=0, versions="0"):
    transactional_id: str = field("0+")


class PartitionsSchema(Struct):
    topic: str = field("0+")
    partition_ids: list[int32] = field("0+")


class TransactionLogValue(Message, kind="data", api_key=0, versions="0-1", flexible="1+"):
    producer_id: int64 = field("0+")
    previous_producer_id: int64 = field("1+", tag=0, tagged="1+", default=-1)
    next_producer_id: int64 = field("1+", tag=1, tagged="1+", default=-1)
    producer_epoch: int16 = field("0+")
    next_producer_epoch: int16 = field("1+", tag=3, tagged="1+", default=-1)
    transaction_timeout_ms: int32 = field("0+")
    transaction_status: int8 = field("0+")
    transaction_partitions: list[PartitionsSchema] | None = field("0+", nullable="0+")
    transaction_last_update_timestamp_ms: int64 = field("0+")
    transaction_start_timestamp_ms: int64 = field("0+")
    client_transaction_version: int16 = field("1+", tag=2, tagged="1+")
