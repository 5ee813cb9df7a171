"""DescribeClusterRequest and DescribeClusterResponse (API key 60)."""

from __future__ import annotations

from pybroker.protocol.schema import Message, Struct, field
from pybroker.protocol.types import int8, int16, int32


class DescribeClusterRequest(Message, kind="request", api_key=60, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = field("0+")
    endpoint_type: int8 = field("1+", default=1)
    include_fenced_brokers: bool = field("2+")


class DescribeClusterBroker(Struct):
    broker_id: int32 = field("0+")
    host: str = field("0+")
    port: int32 = field("0+")
    rack: str | None = field("0+", nullable="0+", default=None)
    is_fenced: bool = field("2+")


class DescribeClusterResponse(Message, kind="response", api_key=60, versions="0-2", flexible="0+"):
    throttle_time_ms: int32 = field("0+")
    error_code: int16 = field("0+")
    error_message: str | None = field("0+", nullable="0+", default=None)
    endpoint_type: int8 = field("1+", default=1)
    cluster_id: str = field("0+")
    controller_id: int32 = field("0+", default=-1)
    brokers: list[DescribeClusterBroker] = field("0+")
    cluster_authorized_operations: int32 = field("0+", default=-2147483648)
