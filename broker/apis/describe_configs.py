"""DescribeConfigs (API key 32): settings of topics, of this broker, of its loggers, of consumer groups.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | is_default, which Kafka never fills
1-2      | 1 sources and synonyms (KIP-226); 2 throttles after answering
3-4      | 3 types and documentation (KIP-569); 4 flexible

Sources: 1 topic, 2 this broker, 3 default of all brokers, 4 at start, 5 default, 6 logger, 8 group. No keys, or an
empty list, mean all. The broker with the empty name has only what is set as default of all. Messages are never null.
An unknown resource type refuses the whole request; sensitive values are null.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from pybroker.broker import loggers
from pybroker.broker.administration import MALFORMED
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.broker.config_changes import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    TYPE_NAMES,
)
from pybroker.config.describing import Described
from pybroker.config.group import describe_group
from pybroker.config.topic import describe_topic
from pybroker.controller import paths, topic_names
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from pybroker.protocol.pace import Pace

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

LOGGER_SOURCE = 6
AT_ONCE = 8  # resources that are described in the request's own call; a topic takes 0.2 ms


def handle(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Awaitable[DescribeConfigsResponse]:
    """See the module's text."""
    if any(resource.resource_type not in TYPE_NAMES for resource in request.resources):
        raise KafkaError(Errors.INVALID_REQUEST, MALFORMED)
    results = [_result(resource) for resource in request.resources]
    pairs = zip(request.resources, results, strict=True)
    if len(results) > AT_ONCE:
        return _describe_all(context, request, pairs, results)
    for resource, result in pairs:
        _describe(context, request, resource, result)
    return DescribeConfigsResponse(results=results)


async def _describe_all(
    context: RequestContext,
    request: DescribeConfigsRequest,
    pairs: Iterable[tuple[DescribeConfigsResource, DescribeConfigsResult]],
    results: list[DescribeConfigsResult],
) -> DescribeConfigsResponse:
    """A console asks for all topics in one request."""
    pace = Pace()
    for resource, result in pairs:
        _describe(context, request, resource, result)
        if pace.due():
            await pace.rest()
    return DescribeConfigsResponse(results=results)


def _describe(
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    result: DescribeConfigsResult,
) -> None:
    try:
        _authorize(context, resource)
        result.configs = [_setting(setting, request) for setting in _settings(context, resource)]
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message or ""


def _authorize(context: RequestContext, resource: DescribeConfigsResource) -> None:
    if resource.resource_type == TOPIC:
        if not context.authorize("DESCRIBE_CONFIGS", "TOPIC", resource.resource_name):
            raise KafkaError(Errors.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    elif resource.resource_type == GROUP:
        if not context.authorize("DESCRIBE_CONFIGS", "GROUP", resource.resource_name):
            raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
    elif not context.authorize("DESCRIBE_CONFIGS", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def _settings(context: RequestContext, resource: DescribeConfigsResource) -> Iterable[Described]:
    services, name = context.services, resource.resource_name
    keys = frozenset(resource.configuration_keys or ())
    if resource.resource_type == TOPIC:
        topic_names.validate(name)
        if name not in services.metadata_cache:
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(services.config, services.configs.topic(name), keys)
    if resource.resource_type == BROKER:
        if not name:
            return services.config.describe_defaults(keys)
        _check_own_id(services.broker_id, name, "Unexpected broker id, expected {} or empty string, but received {}")
        return services.config.describe(keys)
    if resource.resource_type == BROKER_LOGGER:
        if not name:
            raise KafkaError(Errors.INVALID_REQUEST, "Broker id must not be empty")
        _check_own_id(services.broker_id, name, "Unexpected broker id, expected {} but received {}")
        return _loggers(keys)
    if not name:
        what = "Client metrics subscription name" if resource.resource_type == CLIENT_METRICS else "Group name"
        raise KafkaError(Errors.INVALID_REQUEST, f"{what} must not be empty")
    if resource.resource_type == GROUP and services.foreign_brokers.none:
        return describe_group(services.config, services.configs.get(f"groups/{paths.sanitize(name)}"), keys)
    return ()


def _check_own_id(broker_id: int, name: str, otherwise: str) -> None:
    try:
        given = int(name)
    except ValueError:
        raise KafkaError(Errors.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if given != broker_id:
        raise KafkaError(Errors.INVALID_REQUEST, otherwise.format(broker_id, name))


def _loggers(keys: frozenset[str]) -> list[Described]:
    return [
        Described(name, level, LOGGER_SOURCE, False, False, (), 0, "")
        for name, level in loggers.levels().items()
        if not keys or name in keys
    ]


def _setting(setting: Described, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = setting.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=setting.value,
        read_only=setting.read_only,
        config_source=setting.source,
        is_sensitive=setting.sensitive,
        synonyms=[DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms],
        config_type=setting.kind,
        documentation=setting.documentation if request.include_documentation else None,
    )


def _result(resource: DescribeConfigsResource) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_message="", resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )


def error_response(request: DescribeConfigsRequest, error: KafkaError, version: int) -> DescribeConfigsResponse:
    """The error at every resource of the request."""
    results = [_result(resource) for resource in request.resources]
    for result in results:
        result.error_code, result.error_message = error.code, error.message or ""
    return DescribeConfigsResponse(results=results)
