"""IncrementalAlterConfigsRequest and IncrementalAlterConfigsResponse (API key 44)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class AlterableConfig(Struct):
    name: str = field("0+")
    config_operation: int8 = field("0+")
    value: str | None = field("0+", nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int8 = field("0+")
    resource_name: str = field("0+")
    configs: list[AlterableConfig] = field("0+")


class IncrementalAlterConfigsRequest(Message, kind="request", api_key=44, versions="0-1", flexible="1+"):
    resources: list[AlterConfigsResource] = field("0+")
    validate_only: bool = field("0+")


class AlterConfigsResourceResponse(Struct):
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    resource_type: int8 = field("0+")
    resource_name: str = field("0+")


class IncrementalAlterConfigsResponse(Message, kind="response", api_key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int32 = field("0+")
    responses: list[AlterConfigsResourceResponse] = field("0+")
