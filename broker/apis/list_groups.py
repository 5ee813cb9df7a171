"""ListGroups (API key 16): the groups that this broker coordinates.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-3      | 1 throttle time; 2 throttles after answering; 3 flexible
4-5      | 4 states, and a filter by them (KIP-518); 5 types, and a filter by them (KIP-848)

While partitions of the offsets topic are loading, what is known is told with COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """See the module's text."""
    error, groups = context.services.groups.list_groups(request.states_filter, request.types_filter)
    if not context.authorize("DESCRIBE", "CLUSTER", CLUSTER_NAME):
        groups = [group for group in groups if context.authorize("DESCRIBE", "GROUP", group.group_id)]
    return ListGroupsResponse(error_code=error, groups=groups)
