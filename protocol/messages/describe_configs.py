"""DescribeConfigsRequest and DescribeConfigsResponse (API key 32)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class DescribeConfigsResource(Struct):
    resource_type: int8 = field("0+")
    resource_name: str = field("0+")
    configuration_keys: list[str] | None = field("0+", nullable="0+")


class DescribeConfigsRequest(Message, kind="request", api_key=32, versions="0-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = field("0+")
    include_synonyms: bool = field("1+")
    include_documentation: bool = field("3+")


class DescribeConfigsSynonym(Struct):
    name: str = field("1+")
    value: str | None = field("1+", nullable="1+")
    source: int8 = field("1+")


class DescribeConfigsResourceResult(Struct):
    name: str = field("0+")
    value: str | None = field("0+", nullable="0+")
    read_only: bool = field("0+")
    is_default: bool = field("0")
    config_source: int8 = field("1+", default=-1)
    is_sensitive: bool = field("0+")
    synonyms: list[DescribeConfigsSynonym] = field("1+")
    config_type: int8 = field("3+")
    documentation: str | None = field("3+", nullable="3+")


class DescribeConfigsResult(Struct):
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    resource_type: int8 = field("0+")
    resource_name: str = field("0+")
    configs: list[DescribeConfigsResourceResult] = field("0+")


class DescribeConfigsResponse(Message, kind="response", api_key=32, versions="0-4", flexible="4+"):
    throttle_time_ms: int32 = field("0+")
    results: list[DescribeConfigsResult] = field("0+")
