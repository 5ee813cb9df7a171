"""UpdateFeaturesRequest and UpdateFeaturesResponse (API key 57)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class FeatureUpdateKey(Struct):
    feature: str = field("0+")
    max_version_level: int16 = field("0+")
    allow_downgrade: bool = field("0")
    upgrade_type: int8 = field("1+", default=1)


class UpdateFeaturesRequest(Message, kind="request", api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int32 = field("0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = field("0+")
    validate_only: bool = field("1+")


class UpdatableFeatureResult(Struct):
    feature: str = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")


class UpdateFeaturesResponse(Message, kind="response", api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+")
    results: list[UpdatableFeatureResult] = field("0-1")
