"""DescribeCluster (API key 60, KIP-700): brokers, controller, cluster id.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-1      | 1 the kind of endpoints wanted (KIP-919): 1 brokers; 2 controllers of KRaft, of which there are none
2        | fenced brokers (KIP-1073): only KRaft knows them, so none is
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME, authorized_operations
from pybroker.broker.metadata_cache import NOT_ASKED
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

BROKERS, CONTROLLERS = 1, 2


def handle(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """See the module's text."""
    if request.endpoint_type == CONTROLLERS:
        raise KafkaError(
            Errors.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        raise KafkaError(Errors.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}")
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        may_ask = context.authorize("DESCRIBE", "CLUSTER", CLUSTER_NAME)
        operations = authorized_operations(context, "CLUSTER", CLUSTER_NAME) if may_ask else 0
    cache = context.services.metadata_cache
    return DescribeClusterResponse(
        cluster_id=cache.cluster_id,
        controller_id=cache.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in cache.endpoints(context.listener)
        ],
        cluster_authorized_operations=operations,
    )
