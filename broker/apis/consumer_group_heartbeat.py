"""ConsumerGroupHeartbeat (API key 68, KIP-848): a consumer joins, reports, and is told which partitions it has.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | a new member's id is given out by the broker
1        | it comes from the client (KIP-1082); subscriptions by pattern (KIP-1043's SubscribedTopicRegex)

UNSUPPORTED_VERSION where group.coordinator.rebalance.protocols lacks "consumer", and while a broker of Apache Kafka is
in the cluster (ApiVersions leaves it out then).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.coordinator.consumer.heartbeat import Beat
from pybroker.coordinator.effects import Reply
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """See the module's text."""
    if not context.authorize("READ", "GROUP", request.group_id):
        raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
    for topic in request.subscribed_topic_names or ():
        if not context.authorize("DESCRIBE", "TOPIC", topic):
            raise KafkaError(Errors.TOPIC_AUTHORIZATION_FAILED)
    beat = Beat(
        request,
        context.api_version,
        context.client_id or "",
        f"/{context.client_address}",
        lambda topic: context.authorize("DESCRIBE", "TOPIC", topic),
    )
    reply = Reply(context.api_version)
    context.services.groups.consumer_heartbeat(beat, reply)
    answer: ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse] = reply.result()
    return answer
