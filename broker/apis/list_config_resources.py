"""ListConfigResources (API key 74, KIP-1142; version 0 is KIP-714's ListClientMetricsResources).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | client metrics subscriptions only, of which there are none
1        | every kind: groups, client metrics, loggers, brokers, topics; no types mean all

Only 4.x serves this. A type that does not exist is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.broker.config_changes import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, TYPE_NAMES
from pybroker.controller import paths
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """See the module's text."""
    if not context.authorize("DESCRIBE_CONFIGS", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    types = {CLIENT_METRICS} if context.api_version == 0 else set(request.resource_types or TYPE_NAMES)
    if not types <= set(TYPE_NAMES):
        raise KafkaError(Errors.UNSUPPORTED_VERSION)
    cache = context.services.metadata_cache
    brokers = [str(node_id) for node_id in cache.brokers]
    groups = [paths.desanitize(name) for name in context.services.configs.all_of("groups")]
    names = {BROKER_LOGGER: brokers, BROKER: brokers, TOPIC: list(cache.topics), GROUP: groups}
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(types, reverse=True)
            for name in names.get(kind, ())
        ]
    )
