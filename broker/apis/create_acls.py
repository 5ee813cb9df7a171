"""CreateAcls (API key 30).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-3      | 1 pattern types (KIP-290), throttles after answering; 2 flexible; 3 resource type user

There is no authorizer yet: SECURITY_DISABLED for each. A number that means nothing closes the connection, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.acl_filters import NO_AUTHORIZER, close_if_unknown
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """See the module's text."""
    for wanted in request.creations:
        close_if_unknown(wanted.resource_type, wanted.resource_pattern_type, wanted.operation, wanted.permission_type)
    raise KafkaError(Errors.SECURITY_DISABLED, NO_AUTHORIZER)


def error_response(request: CreateAclsRequest, error: KafkaError, version: int) -> CreateAclsResponse:
    """The error for every ACL of the request."""
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=error.code, error_message=error.message) for _ in request.creations]
    )
