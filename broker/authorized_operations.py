"""Which operations a principal may do on a resource, as the bit field of Metadata and DescribeCluster (KIP-430)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

CLUSTER_NAME = "kafka-cluster"

# Bit numbers are Kafka's AclOperation codes.
_CODES = {
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
}
_SUPPORTED = {
    "TOPIC": ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "GROUP": ("READ", "DELETE", "DESCRIBE"),
    "CLUSTER": (
        "CREATE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    ),
}


def authorized_operations(context: RequestContext, resource_type: str, name: str) -> int:
    """`resource_type` is TOPIC, CLUSTER or GROUP. Everything allowed is 3576, 8096 and 328."""
    return sum(
        1 << _CODES[operation]
        for operation in _SUPPORTED[resource_type]
        if context.authorize(operation, resource_type, name)
    )
