"""ControlledShutdown (API key 7): a broker tells the controller that it is about to stop.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-1      | the broker; 1 gives the header its client id
2-3      | 2 broker epoch, that of the present registration; 3 flexible

The answer comes when leadership was handed over, and names the partitions that nobody else can lead.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.administration import require_controller
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: ControlledShutdownRequest) -> Awaitable[ControlledShutdownResponse]:
    """See the module's text."""
    if not context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    require_controller(context)
    return _hand_over(context, request)


async def _hand_over(context: RequestContext, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
    remaining = await context.services.controller.announce_shutdown(request.broker_id, request.broker_epoch)
    return ControlledShutdownResponse(
        remaining_partitions=[
            RemainingPartition(topic_name=at.topic, partition_index=at.partition) for at in remaining
        ]
    )
