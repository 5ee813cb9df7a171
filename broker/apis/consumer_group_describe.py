"""ConsumerGroupDescribe (API key 69, KIP-848): state, epochs, members and assignments of consumer groups.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | INVALID_GROUP_ID for an empty id, GROUP_ID_NOT_FOUND for one that is unknown or a classic group's
1        | which protocol each member speaks (KIP-1099)

What somebody must not describe is left out of the members' subscriptions by an error for the whole group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import authorized_operations
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    """See the module's text."""
    return ConsumerGroupDescribeResponse(
        groups=[_describe(context, group_id, request.include_authorized_operations) for group_id in request.group_ids]
    )


def _describe(context: RequestContext, group_id: str, with_operations: bool) -> DescribedGroup:
    if not context.authorize("DESCRIBE", "GROUP", group_id):
        return DescribedGroup(group_id=group_id, error_code=Errors.GROUP_AUTHORIZATION_FAILED)
    try:
        described: DescribedGroup = context.services.groups.consumer_describe(group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    if described.error_code:
        return described
    topics = {
        part.topic_name
        for member in described.members
        for owned in (member.assignment, member.target_assignment)
        for part in owned.topic_partitions
    }
    topics.update(name for member in described.members for name in member.subscribed_topic_names)
    if not all(context.authorize("DESCRIBE", "TOPIC", topic) for topic in topics):
        return DescribedGroup(
            group_id=group_id,
            error_code=Errors.TOPIC_AUTHORIZATION_FAILED,
            error_message="The group has described topic(s) that the client is not authorized to describe.",
        )
    if with_operations:
        described.authorized_operations = authorized_operations(context, "GROUP", group_id)
    return described
