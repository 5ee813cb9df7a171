"""DeleteTopics (API key 20).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | 0 names; 1 throttle time; 2 throttles after answering
3-5      | 3 TOPIC_DELETION_DISABLED; 4 flexible; 5 a message, which stays null
6        | topics by id (KIP-516); who may delete but not describe is not told the name

Only the controller deletes. The answer comes when no partition is in this broker's metadata any more; after the
timeout, or at once with a timeout of 0 or less, REQUEST_TIMED_OUT, and the topic is deleted all the same. Messages are
null, as Kafka 3.9 sends them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from pybroker.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(
    context: RequestContext, request: DeleteTopicsRequest
) -> Awaitable[DeleteTopicsResponse] | DeleteTopicsResponse:
    """See the module's text."""
    version = context.api_version
    if not context.services.controller.is_active:
        return error_response(request, KafkaError(Errors.NOT_CONTROLLER), version)
    if not context.services.config.bool("delete.topic.enable"):
        disabled = Errors.INVALID_REQUEST if version < 3 else Errors.TOPIC_DELETION_DISABLED
        return error_response(request, KafkaError(disabled), version)
    results = _resolve(context, request)
    for result in results:
        result.error_code = _check(context, result)
    response = DeleteTopicsResponse(responses=results)
    names = dict.fromkeys(result.name for result in results if result.name is not None and not result.error_code)
    return _delete(context, request, list(names), response) if names else response


def _results(request: DeleteTopicsRequest) -> list[DeletableTopicResult]:
    if request.topic_names:
        return [DeletableTopicResult(name=name) for name in request.topic_names]
    return [DeletableTopicResult(name=topic.name, topic_id=topic.topic_id) for topic in request.topics]


def _resolve(context: RequestContext, request: DeleteTopicsRequest) -> list[DeletableTopicResult]:
    """One result a topic, with its name where the id is known."""
    results = _results(request)
    for result in results:
        if result.topic_id == ZERO_UUID:
            continue
        if result.name is not None:
            raise KafkaError(Errors.INVALID_REQUEST, "Topic name and topic ID can not both be specified.")
        result.name = context.services.metadata_cache.topic_name(result.topic_id)
    return results


def _check(context: RequestContext, result: DeletableTopicResult) -> int:
    """The error before anything is deleted."""
    by_id = result.topic_id != ZERO_UUID
    if result.name is None:
        # Neither name nor id: nobody may delete what has no name.
        return Errors.UNKNOWN_TOPIC_ID if by_id else Errors.TOPIC_AUTHORIZATION_FAILED
    if by_id and not context.authorize("DESCRIBE", "TOPIC", result.name):
        result.name = None
        return Errors.TOPIC_AUTHORIZATION_FAILED
    if not context.authorize("DELETE", "TOPIC", result.name):
        return Errors.TOPIC_AUTHORIZATION_FAILED
    if result.name not in context.services.metadata_cache:
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    return Errors.NONE


async def _delete(
    context: RequestContext, request: DeleteTopicsRequest, names: list[str], response: DeleteTopicsResponse
) -> DeleteTopicsResponse:
    services = context.services
    errors: dict[str, Errors] = {}
    for name in names:
        try:
            await services.topics.delete(name)
        except KafkaError as error:
            errors[name] = error.code
    marked = [name for name in names if name not in errors]
    if request.timeout_ms > 0:
        await services.metadata_cache.wait_until(
            marked, lambda: not any(name in services.metadata_cache for name in marked), request.timeout_ms / 1000
        )
        marked = [name for name in marked if name in services.metadata_cache]
    errors |= dict.fromkeys(marked, Errors.REQUEST_TIMED_OUT)
    for result in response.responses:
        # Of a topic named twice only the first result gets the error, as in Kafka.
        if result.name is not None and not result.error_code:
            result.error_code = errors.pop(result.name, Errors.NONE)
    return response


def error_response(request: DeleteTopicsRequest, error: KafkaError, version: int) -> DeleteTopicsResponse:
    """The error at every topic of the request."""
    results = _results(request)
    for result in results:
        result.error_code = error.code
    return DeleteTopicsResponse(responses=results)
