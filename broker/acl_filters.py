"""What the three ACL requests share: which numbers mean something."""

from __future__ import annotations

from pybroker.broker.context import CloseConnection

NO_AUTHORIZER = "No Authorizer is configured."

# Highest known number of each; 0 is "unknown", and so is anything beyond.
_RESOURCE_TYPES, _PATTERN_TYPES, _OPERATIONS, _PERMISSIONS = 7, 4, 15, 3


def close_if_unknown(resource_type: int, pattern_type: int, operation: int, permission_type: int) -> None:
    """Kafka can't even parse a request with an unknown number and closes the connection. Raises CloseConnection."""
    for name, value, highest in (
        ("resource type", resource_type, _RESOURCE_TYPES),
        ("pattern type", pattern_type, _PATTERN_TYPES),
        ("operation", operation, _OPERATIONS),
        ("permission type", permission_type, _PERMISSIONS),
    ):
        if not 1 <= value <= highest:
            raise CloseConnection(f"ACL request with unknown {name} {value}")
