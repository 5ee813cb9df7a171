"""ListPartitionReassignments (API key 46, KIP-455): partitions whose replicas are being moved.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | all there is

Only the controller knows. Null asks for all partitions. The message of success is empty, not null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.administration import require_controller
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from pybroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    """See the module's text."""
    if not context.authorize("DESCRIBE", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    require_controller(context)
    wanted = None
    if request.topics is not None:
        wanted = [TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    topics: dict[str, OngoingTopicReassignment] = {}
    for moving in context.services.controller.reassignments(wanted):
        name, index = moving.at
        topic = topics.setdefault(name, OngoingTopicReassignment(name=name, partitions=[]))
        topic.partitions.append(
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=moving.replicas,
                adding_replicas=moving.adding,
                removing_replicas=moving.removing,
            )
        )
    return ListPartitionReassignmentsResponse(error_message="", topics=list(topics.values()))
