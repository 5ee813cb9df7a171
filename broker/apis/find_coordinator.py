"""FindCoordinator (API key 10).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | one group
1-3      | 1 key type (0 group, 1 transaction), message, throttle time; 2 throttles after answering; 3 flexible
4-5      | 4 several keys at once (KIP-699); 5 new error codes for transactions (KIP-890)
6        | key type 2, a share group's partition (KIP-932)

There are no coordinators yet, so every key of a known type is answered with COORDINATOR_NOT_AVAILABLE, as Kafka does
until its internal topics exist: clients ask again. Up to version 3 the message says so, from 4 on it is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.administration import MALFORMED
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

SEVERAL = 4
NO_NODE = -1
# Key type → the resource to authorize, the error without rights, the first version that knows it.
_KEY_TYPES = {
    0: ("GROUP", Errors.GROUP_AUTHORIZATION_FAILED, 0),
    1: ("TRANSACTIONAL_ID", Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 1),
    2: ("CLUSTER", Errors.CLUSTER_AUTHORIZATION_FAILED, 6),
}


def handle(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """See the module's text."""
    if context.api_version < SEVERAL:
        _find(context, request.key_type, request.key)
    coordinators = []
    for key in request.coordinator_keys:
        try:
            _find(context, request.key_type, key)
        except KafkaError as error:
            coordinators.append(_refused(key, error))
    return FindCoordinatorResponse(coordinators=coordinators)


def _find(context: RequestContext, key_type: int, key: str) -> None:
    known = _KEY_TYPES.get(key_type)
    if known is None or context.api_version < known[2]:
        raise KafkaError(Errors.INVALID_REQUEST, MALFORMED)
    resource_type, denied, _ = known
    if not context.authorize("DESCRIBE", resource_type, key):
        raise KafkaError(denied)
    raise KafkaError(
        Errors.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available." if context.api_version < SEVERAL else ""
    )


def _refused(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_NODE, host="", port=NO_NODE, error_code=error.code, error_message=error.message or ""
    )


def error_response(request: FindCoordinatorRequest, error: KafkaError, version: int) -> FindCoordinatorResponse:
    """The error for the key or all keys of the request."""
    if version >= SEVERAL:
        return FindCoordinatorResponse(coordinators=[_refused(key, error) for key in request.coordinator_keys])
    return FindCoordinatorResponse(
        error_code=error.code, error_message=error.message, node_id=NO_NODE, host="", port=NO_NODE
    )
