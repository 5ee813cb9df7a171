"""StopReplica (API key 5): the controller tells a broker to stop serving partitions, and maybe to delete them.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | one partition after the other, and whether all are to be deleted
1-2      | partitions below their topics, broker epoch; 2 flexible
3-4      | 3 leader epoch and deletion of each partition (KIP-570); 4 whether the controller is KRaft's (refused here)

See broker/controller_orders.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: StopReplicaRequest) -> Awaitable[StopReplicaResponse]:
    """See the module's text."""
    if not context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    if context.api_version < 3:
        request.topic_states = [
            StopReplicaTopicState(
                topic_name=topic,
                partition_states=[
                    StopReplicaPartitionState(partition_index=index, delete_partition=request.delete_partitions)
                    for index in indexes
                ],
            )
            for topic, indexes in _named(request)
        ]
    return context.services.orders.stop_replica(request)


def _named(request: StopReplicaRequest) -> Iterator[tuple[str, list[int]]]:
    for single in request.ungrouped_partitions:
        yield single.topic_name, [single.partition_index]
    for topic in request.topics:
        yield topic.name, topic.partition_indexes
