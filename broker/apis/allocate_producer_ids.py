"""AllocateProducerIds (API key 67, KIP-730): a broker asks the controller for the next block of producer ids.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | broker and broker epoch; answered with the first id and how many there are

Only the controller answers, and only a broker's present registration.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.administration import require_controller
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.controller.producer_ids import allocate_block
from pybroker.controller.store import StoreError
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

logger = logging.getLogger(__name__)


def handle(context: RequestContext, request: AllocateProducerIdsRequest) -> Awaitable[AllocateProducerIdsResponse]:
    """See the module's text."""
    if not context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    require_controller(context)
    node = context.services.controller.broker(request.broker_id)
    if node is None:
        raise KafkaError(Errors.BROKER_ID_NOT_REGISTERED)
    if node.epoch != request.broker_epoch:
        raise KafkaError(Errors.STALE_BROKER_EPOCH)
    return _allocate(context, request.broker_id)


async def _allocate(context: RequestContext, broker_id: int) -> AllocateProducerIdsResponse:
    try:
        block = await allocate_block(context.services.store, broker_id)
    except StoreError as error:
        logger.warning("No block of producer ids for broker %d: %s", broker_id, error)
        raise KafkaError(Errors.COORDINATOR_LOAD_IN_PROGRESS) from error  # brokers ask again
    return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.last - block.first + 1)
