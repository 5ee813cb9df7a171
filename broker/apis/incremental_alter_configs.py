"""IncrementalAlterConfigs (API key 44, KIP-339): set, delete, append, subtract single settings.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-1      | 1 flexible

Operations: 0 set, 1 delete, 2 append to a list, 3 subtract from a list. Each resource stands alone; one that is named
twice is refused twice. Topics: every broker may write. Brokers: the one that is meant, or any with an empty name for
the default of all. Loggers: of this broker, nothing is stored. Consumer groups: where no Apache Kafka is in the
cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker import config_changes
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.broker.config_changes import Change
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


async def handle(context: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """See the module's text."""

    async def alter(resource: AlterConfigsResource) -> None:
        await _alter(context, resource, request.validate_only)

    rows = await config_changes.alter_each(request.resources, AlterConfigsResourceResponse, alter)
    return IncrementalAlterConfigsResponse(responses=rows)


async def _alter(context: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    services = context.services
    changes = [Change(each.name, each.config_operation, each.value) for each in resource.configs]
    config_changes.check_changes(
        [change.name for change in changes],
        [change.name for change in changes if change.value is None and change.operation != config_changes.DELETE],
    )
    kind, name = resource.resource_type, resource.resource_name
    if kind not in config_changes.TYPE_NAMES:
        raise KafkaError(Errors.INVALID_REQUEST, f"Unknown resource type {kind}")
    authorize_alter(context, kind, name)
    if kind == config_changes.BROKER_LOGGER:
        config_changes.change_loggers(services, name, changes, validate_only=validate_only)
        return
    await config_changes.change(services, kind, name, changes, validate_only=validate_only)


def authorize_alter(context: RequestContext, kind: int, name: str) -> None:
    """Raises KafkaError TOPIC_, GROUP_ or CLUSTER_AUTHORIZATION_FAILED."""
    if kind == config_changes.TOPIC:
        if not context.authorize("ALTER_CONFIGS", "TOPIC", name):
            raise KafkaError(Errors.TOPIC_AUTHORIZATION_FAILED)
    elif kind == config_changes.GROUP:
        if not context.authorize("ALTER_CONFIGS", "GROUP", name):
            raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
    elif not context.authorize("ALTER_CONFIGS", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)


def error_response(
    request: IncrementalAlterConfigsRequest, error: KafkaError, version: int
) -> IncrementalAlterConfigsResponse:
    """The error at every resource of the request."""
    rows = config_changes.refuse_all(request.resources, AlterConfigsResourceResponse, error)
    return IncrementalAlterConfigsResponse(responses=rows)
