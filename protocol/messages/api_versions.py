"""ApiVersionsRequest and ApiVersionsResponse (API key 18)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int16, int32, int64


class ApiVersionsRequest(Message, kind="request", api_key=18, versions="0-4", flexible="3+"):
    client_software_name: str = field("3+")
    client_software_version: str = field("3+")


class ApiVersion(Struct):
    api_key: int16 = field("0+")
    min_version: int16 = field("0+")
    max_version: int16 = field("0+")


class SupportedFeatureKey(Struct):
    name: str = field("3+")
    min_version: int16 = field("3+")
    max_version: int16 = field("3+")


class FinalizedFeatureKey(Struct):
    name: str = field("3+")
    max_version_level: int16 = field("3+")
    min_version_level: int16 = field("3+")


class ApiVersionsResponse(Message, kind="response", api_key=18, versions="0-4", flexible="3+"):
    error_code: int16 = field("0+")
    api_keys: list[ApiVersion] = field("0+")
    throttle_time_ms: int32 = field("1+")
    supported_features: list[SupportedFeatureKey] = field("3+", tag=0, tagged="3+")
    finalized_features_epoch: int64 = field("3+", tag=1, tagged="3+", default=-1)
    finalized_features: list[FinalizedFeatureKey] = field("3+", tag=2, tagged="3+")
    zk_migration_ready: bool = field("3+", tag=3, tagged="3+")
