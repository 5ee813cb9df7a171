"""JoinGroup (API key 11): become, or stay, a member of a classic group.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-3      | 1 a rebalance timeout of its own; 2 throttle time; 3 throttles after answering
4        | a first join without a member id is told one to join with (MEMBER_ID_REQUIRED, KIP-394)
5-6      | 5 group.instance.id (KIP-345); 6 flexible
7-9      | 7 protocol type in the answer, and a null protocol where there is none; 8 reason; 9 skip assignment (KIP-814)

The answer comes when all members have joined, or the rebalance timeout is over.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from pybroker.coordinator.effects import Reply
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

NULL_PROTOCOL_SINCE = 7


def handle(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    """See the module's text."""
    if not context.authorize("READ", "GROUP", request.group_id):
        raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
    version = context.api_version
    reply = Reply(version, _nullable if version >= NULL_PROTOCOL_SINCE else _not_null)
    context.services.groups.join(request, context.client_id, f"/{context.client_address}", reply)
    response: JoinGroupResponse | Awaitable[JoinGroupResponse] = reply.result()
    return response


def _nullable(response: Any) -> Any:
    if response.error_code:
        response.protocol_name = None
    return response


def _not_null(response: Any) -> Any:
    response.protocol_name = response.protocol_name or ""
    return response


def error_response(request: JoinGroupRequest, error: KafkaError, version: int) -> JoinGroupResponse:
    """The error, with no generation."""
    return JoinGroupResponse(error_code=error.code, protocol_name=None if version >= NULL_PROTOCOL_SINCE else "")
