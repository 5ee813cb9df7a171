"""Changing settings of topics and of this broker, for AlterConfigs and IncrementalAlterConfigs (Kafka:
ConfigAdminManager, ZkAdminManager).

What becomes of the settings of one resource:

| resource | checked by | stored | takes effect |
|---|---|---|---|
| topic | validate_topic_config | topics/<name> | LogManager, by the repository's listeners |
| broker, own id | validate_dynamic | brokers/<id> | BrokerConfig.apply_dynamic |
| broker, empty name | validate_dynamic | brokers/<default> | on all brokers, the same way |
| group (no Apache Kafka in the cluster) | validate_group_config | groups/<sanitized id> | the coordinator's rules |
| logger | loggers | nowhere | at once |
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.broker import loggers
from pybroker.config import BrokerConfig
from pybroker.config.broker import default_text, find_setting
from pybroker.config.errors import ConfigError
from pybroker.config.group import GROUP_SETTINGS, validate_group_config
from pybroker.config.topic import TOPIC_SETTINGS, validate_topic_config
from pybroker.controller import paths
from pybroker.protocol.errors import Errors, KafkaError

if TYPE_CHECKING:
    from pybroker.broker.services import Services

logger = logging.getLogger(__name__)

# ConfigResource types.
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
TYPE_NAMES = {
    TOPIC: "TOPIC",
    BROKER: "BROKER",
    BROKER_LOGGER: "BROKER_LOGGER",
    CLIENT_METRICS: "CLIENT_METRICS",
    GROUP: "GROUP",
}

# AlterConfigOp types.
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


class Change(NamedTuple):
    """One operation on one setting."""

    name: str
    operation: int
    value: str | None


async def alter_each(resources: Sequence[Any], row: type[Any], alter: Callable[[Any], Awaitable[None]]) -> list[Any]:
    """Change one resource of a request after the other; the rows of its response, each with its own error."""
    times = Counter((each.resource_type, each.resource_name) for each in resources)
    rows = []
    for each in resources:
        error: KafkaError | None = None
        try:
            if times[each.resource_type, each.resource_name] > 1:
                raise KafkaError(Errors.INVALID_REQUEST, "Each resource must appear at most once.")
            await alter(each)
        except KafkaError as refusal:
            error = refusal
        rows.append(_row(each, row, error))
    return rows


def refuse_all(resources: Sequence[Any], row: type[Any], error: KafkaError) -> list[Any]:
    """The rows of a response to a request that failed as a whole."""
    return [_row(each, row, error) for each in resources]


def _row(resource: Any, row: type[Any], error: KafkaError | None) -> Any:
    return row(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def check_changes(names: Sequence[str], nulls: Sequence[str]) -> None:
    """`nulls` are the names that are to be set to null. Raises KafkaError INVALID_REQUEST."""
    if len(set(names)) < len(names):
        raise KafkaError(Errors.INVALID_REQUEST, "Error due to duplicate config keys")
    if nulls:
        raise KafkaError(Errors.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def entity_path(services: Services, resource_type: int, name: str) -> str:
    """Where the settings of a topic or broker are stored. Raises KafkaError."""
    if resource_type == BROKER:
        if not name:
            return f"brokers/{paths.DEFAULT_ENTITY}"
        _check_own_id(services.broker_id, name)
        return f"brokers/{services.broker_id}"
    if resource_type == TOPIC:
        if not name:
            raise KafkaError(Errors.INVALID_REQUEST, "Default topic resources are not allowed.")
        return f"topics/{name}"
    if resource_type == GROUP and services.foreign_brokers.none:
        if not name:
            raise KafkaError(Errors.INVALID_REQUEST, "Default group resources are not allowed.")
        return f"groups/{paths.sanitize(name)}"
    raise KafkaError(
        Errors.INVALID_REQUEST,
        "AlterConfigs is only supported for topics and brokers, but resource type is "
        + TYPE_NAMES.get(resource_type, "UNKNOWN"),
    )


def _check_own_id(broker_id: int, name: str) -> None:
    try:
        given = int(name)
    except ValueError:
        raise KafkaError(Errors.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if given != broker_id:
        raise KafkaError(Errors.INVALID_REQUEST, f"Unexpected broker id, expected {broker_id}, but received {name}")


async def replace(
    services: Services, resource_type: int, name: str, settings: Mapping[str, str], *, validate_only: bool
) -> None:
    """Make `settings` all that a topic, group or broker sets. Raises KafkaError."""
    path = entity_path(services, resource_type, name)
    _check(services, resource_type, name, settings)
    if not validate_only:
        _check_store(services)
        await services.configs.write(path, settings)


async def change(
    services: Services, resource_type: int, name: str, changes: Sequence[Change], *, validate_only: bool
) -> None:
    """Change single settings of a topic, group or broker, of those that it has at that moment. Raises KafkaError."""
    path = entity_path(services, resource_type, name)

    def decide(before: Mapping[str, str]) -> Mapping[str, str]:
        settings = apply_changes(resource_type, before, changes)
        _check(services, resource_type, name, settings)
        return settings

    if validate_only:
        decide(services.configs.get(path))
    else:
        _check_store(services)
        await services.configs.change(path, decide)


def _check_store(services: Services) -> None:
    """REQUEST_TIMED_OUT where nothing can be written for the time being."""
    if services.store_watch.is_away:
        raise KafkaError(Errors.REQUEST_TIMED_OUT, "The metadata store can't be reached at the moment.")


def _check(services: Services, resource_type: int, name: str, settings: Mapping[str, str]) -> None:
    """KafkaError where these can't be all that it sets."""
    if resource_type == TOPIC:
        if name not in services.metadata_cache:
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        _check_topic(services.config, name, settings)
    elif resource_type == GROUP:
        try:
            validate_group_config(settings, services.config)
        except ConfigError as error:
            raise KafkaError(Errors.INVALID_CONFIG, error.message) from None
    else:
        try:
            services.config.validate_dynamic(settings, per_broker=bool(name))
        except ConfigError as error:
            raise KafkaError(Errors.INVALID_REQUEST, error.message) from None


def _check_topic(config: BrokerConfig, name: str, settings: Mapping[str, str]) -> None:
    try:
        validate_topic_config(settings, config)
    except ConfigError as error:
        message = error.message
        if message.startswith("Invalid value"):
            message = f"Invalid config value for resource ConfigResource(type=TOPIC, name='{name}'): {message}"
        raise KafkaError(Errors.INVALID_CONFIG, message) from None


def apply_changes(resource_type: int, before: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
    """All settings that a topic or broker has after these changes, not yet checked. Raises KafkaError."""
    settings = dict(before)
    for change in changes:
        if change.operation == DELETE:
            settings.pop(change.name, None)
        elif change.operation == SET:
            settings[change.name] = change.value or ""
        elif change.operation in (APPEND, SUBTRACT):
            settings[change.name] = _change_list(resource_type, change, settings.get(change.name))
        else:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR)
    return settings


def _change_list(resource_type: int, change: Change, current: str | None) -> str:
    kind, default = _kind_and_default(resource_type, change.name)
    if kind != "LIST" and resource_type == GROUP:
        word = "APPEND" if change.operation == APPEND else "SUBTRACT"
        raise KafkaError(
            Errors.INVALID_CONFIG, f"Can't {word} to key {change.name} because its type is not LIST."
        )
    if kind != "LIST":
        word = "append" if change.operation == APPEND else "subtract"
        raise KafkaError(Errors.INVALID_CONFIG, f"Config value {word} is not allowed for config key: {change.name}")
    text = current if current is not None else default
    items = text.split(",") if text else []
    given = (change.value or "").split(",")
    if change.operation == APPEND:
        return ",".join(items + [item for item in given if item not in items])
    for item in given:
        if item in items:
            items.remove(item)
    return ",".join(items)


def _kind_and_default(resource_type: int, name: str) -> tuple[str, str | None]:
    if resource_type == TOPIC:
        setting = TOPIC_SETTINGS.get(name)
        if setting is not None:
            return setting.kind, setting.default
        raise KafkaError(Errors.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if resource_type == GROUP:
        if name in GROUP_SETTINGS:
            return "INT", None
        raise KafkaError(Errors.INVALID_CONFIG, f"Unknown group config name: {name}")
    found = find_setting(name)
    if found is None:
        raise KafkaError(Errors.INVALID_CONFIG, f"Unknown config name: {name}")
    return found.kind, default_text(name)


def change_loggers(services: Services, name: str, changes: Sequence[Change], *, validate_only: bool) -> None:
    """Set log levels of this broker; all or none. Raises KafkaError."""
    _check_own_id(services.broker_id, name)
    for change in changes:
        if change.operation in (APPEND, SUBTRACT):
            word = "APPEND" if change.operation == APPEND else "SUBTRACT"
            raise KafkaError(Errors.INVALID_REQUEST, f"{word} operation is not allowed for the BROKER_LOGGER resource")
        if change.operation not in (SET, DELETE):
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR)
        loggers.check_name(change.name)
        if change.operation == SET:
            loggers.check_level(change.name, change.value or "")
        elif change.name == loggers.ROOT:
            raise KafkaError(
                Errors.INVALID_REQUEST, f"Removing the log level of the {loggers.ROOT} logger is not allowed"
            )
    if validate_only:
        return
    for change in changes:
        if change.operation == SET:
            loggers.set_level(change.name, change.value or "")
            logger.warning("Updated the log level of %s to %s", change.name, change.value)
        else:
            loggers.unset_level(change.name)
            logger.warning("Unset the log level of %s", change.name)
