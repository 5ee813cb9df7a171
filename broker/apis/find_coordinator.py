"""FindCoordinator (API key 10): which broker coordinates a group or a transactional id.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | one group
1-3      | 1 key type (0 group, 1 transaction), message, throttle time; 2 throttles after answering; 3 flexible
4-5      | 4 several keys at once (KIP-699); 5 new error codes for transactions (KIP-890)
6        | key type 2, a share group's partition (KIP-932)

It is the leader of the key's partition of the internal topic, COORDINATOR_NOT_AVAILABLE while there is none; clients
ask again. The first question creates the topic, and is answered when the topic is there, or after CREATION_SECONDS, or
at once while the store does not answer: so a first consumer does not wait for its client's next try, and nothing that
it sent behind its question waits for long. There is no transaction coordinator yet. Messages are told up
to version 3, from 4 on they are empty.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.administration import MALFORMED, wait_for_leaders
from pybroker.coordinator.partitioner import partition_for
from pybroker.coordinator.service import OFFSETS_TOPIC
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

SEVERAL = 4
NO_NODE = -1
GROUP = 0
CREATION_SECONDS = 1.0
# Key type → the resource to authorize, the error without rights, the first version that knows it.
_KEY_TYPES = {
    GROUP: ("GROUP", Errors.GROUP_AUTHORIZATION_FAILED, 0),
    1: ("TRANSACTIONAL_ID", Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 1),
    2: ("CLUSTER", Errors.CLUSTER_AUTHORIZATION_FAILED, 6),
}


def handle(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """See the module's text."""
    if request.key_type == GROUP and OFFSETS_TOPIC not in context.services.metadata_cache:
        return _create_first(context, request)
    return _answer(context, request)


async def _create_first(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    services = context.services
    answers = await services.topics.auto_create([OFFSETS_TOPIC])
    if answers[OFFSETS_TOPIC] == Errors.LEADER_NOT_AVAILABLE and not services.topics.is_coming(OFFSETS_TOPIC):
        count = services.config.int("offsets.topic.num.partitions")
        await wait_for_leaders(context, {OFFSETS_TOPIC: count}, int(CREATION_SECONDS * 1000))
    return _answer(context, request)


def _answer(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if context.api_version < SEVERAL:
        found = _find(context, request.key_type, request.key)
        return FindCoordinatorResponse(error_message="NONE", node_id=found.node_id, host=found.host, port=found.port)
    coordinators = []
    for key in request.coordinator_keys:
        try:
            coordinators.append(_find(context, request.key_type, key))
        except KafkaError as error:
            coordinators.append(_refused(key, error))
    return FindCoordinatorResponse(coordinators=coordinators)


def _find(context: RequestContext, key_type: int, key: str) -> Coordinator:
    known = _KEY_TYPES.get(key_type)
    if known is None or context.api_version < known[2]:
        raise KafkaError(Errors.INVALID_REQUEST, MALFORMED)
    resource_type, denied, _ = known
    if not context.authorize("DESCRIBE", resource_type, key):
        raise KafkaError(denied)
    if key_type == GROUP:
        found = _leader(context, key)
        if found is not None:
            return found
    raise KafkaError(
        Errors.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available." if context.api_version < SEVERAL else ""
    )


def _leader(context: RequestContext, group_id: str) -> Coordinator | None:
    """The leader of the group's partition of the offsets topic, if there is one that can be reached."""
    cache = context.services.metadata_cache
    partitions = cache.partitions(OFFSETS_TOPIC)
    if not partitions:
        return None
    leader = cache.leader(OFFSETS_TOPIC, partition_for(group_id, len(partitions)))
    endpoint = cache.endpoint(leader[0], context.listener) if leader is not None else None
    if endpoint is None:
        return None
    return Coordinator(key=group_id, node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, error_message="")


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
