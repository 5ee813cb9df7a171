"""DeleteAcls (API key 31).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-3      | 1 pattern types (KIP-290), throttles after answering; 2 flexible; 3 resource type user

There is no authorizer yet: SECURITY_DISABLED for each. A number that means nothing closes the connection, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.acl_filters import NO_AUTHORIZER, close_if_unknown
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """See the module's text."""
    for wanted in request.filters:
        close_if_unknown(
            wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type
        )
    raise KafkaError(Errors.SECURITY_DISABLED, NO_AUTHORIZER)


def error_response(request: DeleteAclsRequest, error: KafkaError, version: int) -> DeleteAclsResponse:
    """The error for every filter of the request."""
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=error.code, error_message=error.message, matching_acls=[])
            for _ in request.filters
        ]
    )
