"""ControlledShutdownRequest and ControlledShutdownResponse (API key 7)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class ControlledShutdownRequest(Message, kind="request", api_key=7, versions="0-3", flexible="3+"):
    broker_id: int32 = field("0+")
    broker_epoch: int64 = field("2+", default=-1)


class RemainingPartition(Struct):
    topic_name: str = field("0+")
    partition_index: int32 = field("0+")


class ControlledShutdownResponse(Message, kind="response", api_key=7, versions="0-3", flexible="3+"):
    error_code: int16 = field("0+")
    remaining_partitions: list[RemainingPartition] = field("0+")
