"""PushTelemetryRequest and PushTelemetryResponse (API key 72)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import Uuid, int8, int16, int32


class PushTelemetryRequest(Message, kind="request", api_key=72, versions="0", flexible="0+"):
    client_instance_id: Uuid = field("0+")
    subscription_id: int32 = field("0+")
    terminating: bool = field("0+")
    compression_type: int8 = field("0+")
    metrics: bytes = field("0+")


class PushTelemetryResponse(Message, kind="response", api_key=72, versions="0", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
