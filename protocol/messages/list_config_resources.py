"""ListConfigResourcesRequest and ListConfigResourcesResponse (API key 74)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class ListConfigResourcesRequest(Message, kind="request", api_key=74, versions="0-1", flexible="0+"):
    resource_types: list[int8] = field("1+")


class ConfigResource(Struct):
    resource_name: str = field("0+")
    resource_type: int8 = field("1+", default=16)


class ListConfigResourcesResponse(Message, kind="response", api_key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    config_resources: list[ConfigResource] = field("0+")
