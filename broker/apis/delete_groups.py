"""DeleteGroups (API key 42): forget groups without members.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | 1 throttles after answering; 2 flexible

NON_EMPTY_GROUP for those that have members, GROUP_ID_NOT_FOUND for those that are not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """See the module's text."""
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=_delete(context, group_id))
            for group_id in dict.fromkeys(request.groups_names)
        ]
    )


def _delete(context: RequestContext, group_id: str) -> Errors:
    if not context.authorize("DELETE", "GROUP", group_id):
        return Errors.GROUP_AUTHORIZATION_FAILED
    error: Errors = context.services.groups.delete_group(group_id)
    return error
