"""GetTelemetrySubscriptionsRequest and GetTelemetrySubscriptionsResponse (API key 71)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import Uuid, int8, int16, int32


class GetTelemetrySubscriptionsRequest(Message, kind="request", api_key=71, versions="0", flexible="0+"):
    client_instance_id: Uuid = field("0+")


class GetTelemetrySubscriptionsResponse(Message, kind="response", api_key=71, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    client_instance_id: Uuid = field("0+")
    subscription_id: int32 = field("0+")
    accepted_compression_types: list[int8] = field("0+")
    push_interval_ms: int32 = field("0+")
    telemetry_max_bytes: int32 = field("0+")
    delta_temporality: bool = field("0+")
    requested_metrics: list[str] = field("0+")
