"""DescribeClientQuotasRequest and DescribeClientQuotasResponse (API key 48)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import float64, int8, int16, int32


class ComponentData(Struct):
    entity_type: str = field("0+")
    match_type: int8 = field("0+")
    match: str | None = field("0+", nullable="0+")


class DescribeClientQuotasRequest(Message, kind="request", api_key=48, versions="0-1", flexible="1+"):
    components: list[ComponentData] = field("0+")
    strict: bool = field("0+")


class EntityData(Struct):
    entity_type: str = field("0+")
    entity_name: str | None = field("0+", nullable="0+")


class ValueData(Struct):
    key: str = field("0+")
    value: float64 = field("0+")


class EntryData(Struct):
    entity: list[EntityData] = field("0+")
    values: list[ValueData] = field("0+")


class DescribeClientQuotasResponse(Message, kind="response", api_key=48, versions="0-1", flexible="1+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    entries: list[EntryData] | None = field("0+", nullable="0+")
