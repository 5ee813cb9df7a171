"""DescribeGroups (API key 15): state, members and assignments of classic groups.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-3      | 1 throttle time; 2 throttles after answering; 3 authorized operations
4-6      | 4 group.instance.id; 5 flexible; 6 GROUP_ID_NOT_FOUND with a message, before it is a Dead group (KIP-1043)

Subscriptions and assignments are told only of a stable group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import authorized_operations
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """See the module's text."""
    return DescribeGroupsResponse(
        groups=[_describe(context, group_id, request.include_authorized_operations) for group_id in request.groups]
    )


def _describe(context: RequestContext, group_id: str, with_operations: bool) -> DescribedGroup:
    if not context.authorize("DESCRIBE", "GROUP", group_id):
        return DescribedGroup(group_id=group_id, error_code=Errors.GROUP_AUTHORIZATION_FAILED)
    described: DescribedGroup = context.services.groups.describe(group_id, context.api_version)
    if with_operations and not described.error_code:
        described.authorized_operations = authorized_operations(context, "GROUP", group_id)
    return described
