"""SyncGroup (API key 14): the leader brings everyone's assignment, every member gets its own.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | 1 throttle time; 2 throttles after answering
3-5      | 3 group.instance.id; 4 flexible; 5 protocol type and name, which must be there and right

The answer comes when the leader's assignment is written.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.coordinator.effects import Reply
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

PROTOCOL_SINCE = 5


def handle(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    """See the module's text."""
    if context.api_version >= PROTOCOL_SINCE and (request.protocol_type is None or request.protocol_name is None):
        raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL)
    if not context.authorize("READ", "GROUP", request.group_id):
        raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
    reply = Reply(context.api_version)
    context.services.groups.sync(request, reply)
    response: SyncGroupResponse | Awaitable[SyncGroupResponse] = reply.result()
    return response
