"""CreateTopics (API key 19).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | partitions, replication factor or assignments, settings
1-2      | 1 validate only, messages; 2 throttle time
3-4      | 3 throttles after answering; 4 -1 means the broker's default (older ones may say so too)
5        | flexible; the answer carries partitions, replication factor and all settings with their sources (KIP-525)
6-7      | 6 a quota may refuse (KIP-599); 7 topic ids in the answer

Only the controller creates. The answer comes when all partitions have leaders here; after the timeout, or at once with
a timeout of 0 or less, REQUEST_TIMED_OUT, and the topic is made all the same. A topic named twice is refused twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.administration import wait_for_leaders
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.config.topic import describe_topic
from pybroker.controller.topic_names import CLUSTER_METADATA
from pybroker.controller.topics import CreatedTopic, NewTopic
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pybroker.protocol.pace import Pace

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

WITH_DETAILS = 5


def handle(
    context: RequestContext, request: CreateTopicsRequest
) -> Awaitable[CreateTopicsResponse] | CreateTopicsResponse:
    """See the module's text."""
    if not context.services.controller.is_active:
        return error_response(request, KafkaError(Errors.NOT_CONTROLLER, ""), context.api_version)
    results = _results(request)
    _refuse_early(context, request, results)
    wanted = [topic for topic, result in zip(request.topics, results, strict=True) if not result.error_code]
    response = CreateTopicsResponse(topics=results)
    return _create(context, request, wanted, response) if wanted else response


def _results(request: CreateTopicsRequest) -> list[CreatableTopicResult]:
    return [CreatableTopicResult(name=topic.name, configs=[], error_message=None) for topic in request.topics]


def _refuse_early(context: RequestContext, request: CreateTopicsRequest, results: list[CreatableTopicResult]) -> None:
    """What is refused for the name alone."""
    times = Counter(topic.name for topic in request.topics)
    may_create_any = context.authorize("CREATE", "CLUSTER", CLUSTER_NAME)
    for result in results:
        if times[result.name] > 1:
            _fail(result, KafkaError(Errors.INVALID_REQUEST, "Found multiple entries for this topic."))
        elif not may_create_any and not context.authorize("CREATE", "TOPIC", result.name):
            _fail(result, KafkaError(Errors.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."))
        elif result.name == CLUSTER_METADATA:
            message = f"Creation of internal topic {CLUSTER_METADATA} is prohibited."
            _fail(result, KafkaError(Errors.INVALID_REQUEST, message))


async def _create(
    context: RequestContext, request: CreateTopicsRequest, wanted: list[CreatableTopic], response: CreateTopicsResponse
) -> CreateTopicsResponse:
    outcomes = await context.services.topics.create(
        [_new_topic(topic) for topic in wanted], validate_only=request.validate_only
    )
    created = {name: len(made.assignment) for name, made in outcomes.items() if isinstance(made, CreatedTopic)}
    late: set[str] = set()
    if created and not request.validate_only:
        # Kafka doesn't even look with a timeout of 0: the topic can't be ready yet.
        late = set(created) if request.timeout_ms <= 0 else await wait_for_leaders(context, created, request.timeout_ms)
    pace = Pace()
    for result in response.topics:
        if pace.due():
            await pace.rest()
        outcome = outcomes.get(result.name)
        if outcome is None or result.error_code:
            continue
        if isinstance(outcome, KafkaError):
            _fail(result, outcome)
            continue
        result.topic_id = outcome.topic_id
        if result.name in late:
            _fail(result, KafkaError(Errors.REQUEST_TIMED_OUT))
        elif context.api_version >= WITH_DETAILS:
            _describe(context, result, outcome)
    return response


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(each.partition_index, each.broker_ids) for each in topic.assignments],
        [(each.name, each.value) for each in topic.configs],
    )


def _describe(context: RequestContext, result: CreatableTopicResult, created: CreatedTopic) -> None:
    """Partitions, replication factor and settings, for those who may see settings."""
    if not context.authorize("DESCRIBE_CONFIGS", "TOPIC", result.name):
        result.topic_config_error_code = Errors.TOPIC_AUTHORIZATION_FAILED
        return
    result.num_partitions = len(created.assignment)
    result.replication_factor = len(created.assignment[0])
    result.configs = [
        CreatableTopicConfigs(
            name=setting.name,
            value=setting.value,
            read_only=setting.read_only,
            config_source=setting.source,
            is_sensitive=setting.sensitive,
        )
        for setting in describe_topic(context.services.config, created.configs)
    ]


def _fail(result: CreatableTopicResult, error: KafkaError) -> None:
    result.error_code = error.code
    result.error_message = error.message


def error_response(request: CreateTopicsRequest, error: KafkaError, version: int) -> CreateTopicsResponse:
    """The error at every topic of the request."""
    results = _results(request)
    for result in results:
        _fail(result, error)
    return CreateTopicsResponse(topics=results)
