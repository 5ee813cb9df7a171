"""UpdateMetadata (API key 6): the controller tells every broker which brokers live and who leads which partition.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | partitions with their topic's name in each; 1 endpoints of brokers; 2 racks
3-4      | 3 names of listeners; 4 replicas that are offline
5-6      | partitions below their topics, broker epoch; 6 flexible
7-8      | 7 topic ids (KIP-516); 8 type of the request and whether the controller is KRaft's (refused here)

See broker/controller_orders.py.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: UpdateMetadataRequest) -> Awaitable[UpdateMetadataResponse]:
    """See the module's text."""
    if not context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    return context.services.orders.update_metadata(request)
