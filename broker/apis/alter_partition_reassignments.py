"""AlterPartitionReassignments (API key 45, KIP-455): move partitions to other replicas, or stop that.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | all there is
1        | may forbid to change the number of replicas

Only the controller does it; the answer comes when a move has begun. Null replicas cancel. The message of success is
empty for the whole and null for partitions.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.administration import require_controller
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from pybroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Awaitable[AlterPartitionReassignmentsResponse]:
    """See the module's text."""
    if not context.authorize("ALTER", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    require_controller(context)
    return _reassign(context, request)


async def _reassign(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    wanted = {
        TopicPartition(topic.name, each.partition_index): each.replicas
        for topic in request.topics
        for each in topic.partitions
    }
    keep_factor = context.api_version >= 1 and not request.allow_replication_factor_change
    topics: dict[str, ReassignableTopicResponse] = {}
    for (name, index), answer in (await context.services.controller.reassign(wanted, keep_factor=keep_factor)).items():
        topic = topics.setdefault(name, ReassignableTopicResponse(name=name, partitions=[]))
        topic.partitions.append(
            ReassignablePartitionResponse(
                partition_index=index, error_code=answer.error, error_message=answer.message
            )
        )
    return AlterPartitionReassignmentsResponse(
        error_message="",
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=list(topics.values()),
    )
