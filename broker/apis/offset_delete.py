"""OffsetDelete (API key 47): forget committed offsets of single partitions (KIP-496).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | all of it

A topic that a member of a live group subscribes to is GROUP_SUBSCRIBED_TO_TOPIC; live groups that are no consumers'
groups are NON_EMPTY_GROUP as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.coordinator.offsets import Place
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """See the module's text."""
    if not context.authorize("DELETE", "GROUP", request.group_id):
        raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
    response = OffsetDeleteResponse()
    places: list[Place] = []
    rows: list[OffsetDeleteResponsePartition] = []
    for topic in request.topics:
        answer = OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answer)
        allowed = context.authorize("READ", "TOPIC", topic.name)
        known = context.services.metadata_cache.partitions(topic.name)
        for each in topic.partitions:
            row = OffsetDeleteResponsePartition(partition_index=each.partition_index)
            answer.partitions.append(row)
            if not allowed:
                row.error_code = Errors.TOPIC_AUTHORIZATION_FAILED
            elif each.partition_index not in known:
                row.error_code = Errors.UNKNOWN_TOPIC_OR_PARTITION
            else:
                places.append((topic.name, each.partition_index))
                rows.append(row)
    errors = context.services.groups.delete_offsets(request.group_id, places)
    for row, error in zip(rows, errors, strict=True):
        row.error_code = error
    return response
