"""LeaveGroup (API key 13): members leave a classic group, or are taken out of it.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | one member; 1 throttle time; 2 throttles after answering
3-5      | 3 several members, also by group.instance.id alone (KIP-345); 4 flexible; 5 reason

Up to version 2 the member's error is the answer's, from 3 on each member has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

SEVERAL = 3


def handle(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """See the module's text."""
    if not context.authorize("READ", "GROUP", request.group_id):
        raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
    several = context.api_version >= SEVERAL
    leaving = request.members if several else [MemberIdentity(member_id=request.member_id)]
    response: LeaveGroupResponse = context.services.groups.leave(request, leaving)
    if not several and not response.error_code:
        response.error_code = response.members[0].error_code
    return response
