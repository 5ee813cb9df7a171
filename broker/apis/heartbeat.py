"""Heartbeat (API key 12): a member of a classic group says that it is alive, and hears of rebalances.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | 1 throttle time; 2 throttles after answering
3-4      | 3 group.instance.id; 4 flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """See the module's text."""
    if not context.authorize("READ", "GROUP", request.group_id):
        raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
    error = context.services.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=error)
