"""DescribeAcls (API key 29).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-3      | 1 pattern types (KIP-290), throttles after answering; 2 flexible; 3 resource type user

There is no authorizer yet: SECURITY_DISABLED. A number that means nothing closes the connection, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.acl_filters import close_if_unknown
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """See the module's text."""
    close_if_unknown(
        request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
    )
    raise KafkaError(Errors.SECURITY_DISABLED, "No Authorizer is configured on the broker")
