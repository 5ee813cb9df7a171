"""AlterClientQuotasRequest and AlterClientQuotasResponse (API key 49)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import float64, int16, int32


class EntityData(Struct):
    entity_type: str = field("0+")
    entity_name: str | None = field("0+", nullable="0+")


class OpData(Struct):
    key: str = field("0+")
    value: float64 = field("0+")
    remove: bool = field("0+")


class EntryData(Struct):
    entity: list[EntityData] = field("0+")
    ops: list[OpData] = field("0+")


class AlterClientQuotasRequest(Message, kind="request", api_key=49, versions="0-1", flexible="1+"):
    entries: list[EntryData] = field("0+")
    validate_only: bool = field("0+")


class ResponseEntryData(Struct):
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    entity: list[EntityData] = field("0+")


class AlterClientQuotasResponse(Message, kind="response", api_key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: int32 = field("0+")
    entries: list[ResponseEntryData] = field("0+")
