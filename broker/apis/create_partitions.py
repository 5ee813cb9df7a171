"""CreatePartitions (API key 37).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-1      | 1 throttles after answering
2-3      | 2 flexible; 3 a quota may refuse (KIP-599)

Only the controller enlarges. `count` is the new total. The answer comes when all partitions have leaders here; after
the timeout, or at once with a timeout of 0 or less, REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pybroker.broker.administration import wait_for_leaders
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


async def handle(context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """See the module's text."""
    if not context.services.controller.is_active:
        return error_response(request, KafkaError(Errors.NOT_CONTROLLER), context.api_version)
    times = Counter(topic.name for topic in request.topics)
    results = {topic.name: CreatePartitionsTopicResult(name=topic.name) for topic in request.topics}
    enlarged: dict[str, int] = {}
    for topic in request.topics:
        try:
            if times[topic.name] > 1:
                raise KafkaError(Errors.INVALID_REQUEST, "Duplicate topic in request.")
            enlarged[topic.name] = await _enlarge(context, topic, request.validate_only)
        except KafkaError as error:
            _fail(results[topic.name], error)
    if enlarged and not request.validate_only:
        late = set(enlarged)
        if request.timeout_ms > 0:
            late = await wait_for_leaders(context, enlarged, request.timeout_ms)
        for name in late:
            _fail(results[name], KafkaError(Errors.REQUEST_TIMED_OUT))
    return CreatePartitionsResponse(results=list(results.values()))


async def _enlarge(context: RequestContext, topic: CreatePartitionsTopic, validate_only: bool) -> int:
    if not context.authorize("ALTER", "TOPIC", topic.name):
        raise KafkaError(Errors.TOPIC_AUTHORIZATION_FAILED, "The topic authorization is failed.")
    assignments = None if topic.assignments is None else [each.broker_ids for each in topic.assignments]
    assignment = await context.services.topics.add_partitions(
        topic.name, topic.count, assignments, validate_only=validate_only
    )
    return len(assignment)


def _fail(result: CreatePartitionsTopicResult, error: KafkaError) -> None:
    result.error_code = error.code
    result.error_message = error.message


def error_response(request: CreatePartitionsRequest, error: KafkaError, version: int) -> CreatePartitionsResponse:
    """The error at every topic of the request."""
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            for topic in request.topics
        ]
    )
