"""LeaderAndIsr (API key 4): the controller tells a broker which partitions to lead and which to follow.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-1      | partitions with their topic's name in each; 1 whether the partition is new
2-4      | partitions below their topics, broker epoch; 3 adding and removing replicas (KIP-455); 4 flexible
5        | topic ids, in the answer too; type of the request (KIP-516)
6-7      | 6 leader recovery state (KIP-704); 7 whether the controller is KRaft's (refused here)

Partitions of versions without topic ids keep the id they had. See broker/controller_orders.py.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.broker.controller_orders import refused
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: LeaderAndIsrRequest) -> Awaitable[LeaderAndIsrResponse]:
    """See the module's text."""
    if not context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    return _carry_out(context, request)


async def _carry_out(context: RequestContext, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    _group(request)
    response = await context.services.orders.leader_and_isr(request)
    return _by_name(request, response) if context.api_version < 5 else response


def _group(request: LeaderAndIsrRequest) -> None:
    topics: dict[str, LeaderAndIsrTopicState] = {}
    for state in request.ungrouped_partition_states:
        topic = topics.get(state.topic_name)
        if topic is None:
            topic = topics[state.topic_name] = LeaderAndIsrTopicState(topic_name=state.topic_name)
            request.topic_states.append(topic)
        topic.partition_states.append(state)


def _by_name(request: LeaderAndIsrRequest, response: LeaderAndIsrResponse) -> LeaderAndIsrResponse:
    """The answer of versions 0-4; its topics are in the order of the request's."""
    errors = [
        LeaderAndIsrPartitionError(
            topic_name=topic.topic_name, partition_index=each.partition_index, error_code=each.error_code
        )
        for topic, answered in zip(request.topic_states, response.topics, strict=True)
        for each in answered.partition_errors
    ]
    return LeaderAndIsrResponse(error_code=response.error_code, partition_errors=errors)


def error_response(request: LeaderAndIsrRequest, error: KafkaError, version: int) -> LeaderAndIsrResponse:
    """The error for the whole and for every partition."""
    _group(request)
    response = refused(request, error.code)
    return _by_name(request, response) if version < 5 else response
