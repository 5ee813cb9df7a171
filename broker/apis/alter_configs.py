"""AlterConfigs (API key 33): replace all settings of a topic or broker. Superseded by IncrementalAlterConfigs.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | 1 throttles after answering; 2 flexible

What the request does not name goes back to its default. A null value is refused. Loggers can't be set in this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker import config_changes
from pybroker.broker.apis.incremental_alter_configs import authorize_alter
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

_ALTERABLE = frozenset({config_changes.TOPIC, config_changes.BROKER})


async def handle(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """See the module's text."""

    async def alter(resource: AlterConfigsResource) -> None:
        await _alter(context, resource, request.validate_only)

    rows = await config_changes.alter_each(request.resources, AlterConfigsResourceResponse, alter)
    return AlterConfigsResponse(responses=rows)


async def _alter(context: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    kind, name = resource.resource_type, resource.resource_name
    groups_too = context.services.foreign_brokers.none
    nulls = [each.name for each in resource.configs if each.value is None]
    config_changes.check_changes([each.name for each in resource.configs], nulls)
    if kind not in _ALTERABLE and not (kind == config_changes.GROUP and groups_too):
        raise KafkaError(Errors.INVALID_REQUEST, f"Unknown resource type {kind}")
    authorize_alter(context, kind, name)
    settings = {each.name: each.value or "" for each in resource.configs}
    await config_changes.replace(context.services, kind, name, settings, validate_only=validate_only)


def error_response(request: AlterConfigsRequest, error: KafkaError, version: int) -> AlterConfigsResponse:
    """The error at every resource of the request."""
    rows = config_changes.refuse_all(request.resources, AlterConfigsResourceResponse, error)
    return AlterConfigsResponse(responses=rows)
