"""Log levels as Kafka's admin clients see and set them (KIP-412): by Kafka's logger names where we have a counterpart,
and by our own."""

from __future__ import annotations

import logging

from pybroker.protocol.errors import Errors, KafkaError

ROOT = "root"

# Kafka's logger -> ours. All of Kafka's that operators are told to set.
_COUNTERPARTS = {
    ROOT: "pybroker",
    "kafka": "pybroker",
    "org.apache.kafka": "pybroker",
    "kafka.controller": "pybroker.controller",
    "kafka.coordinator": "pybroker.coordinator",
    "kafka.coordinator.group": "pybroker.coordinator.group",
    "kafka.coordinator.transaction": "pybroker.coordinator.transaction",
    "kafka.log": "pybroker.storage",
    "kafka.log.LogCleaner": "pybroker.storage.cleaner",
    "kafka.log.LogManager": "pybroker.storage.log_manager",
    "kafka.network": "pybroker.broker.network",
    "kafka.network.RequestChannel$": "pybroker.broker.network.request_channel",
    "kafka.network.SocketServer": "pybroker.broker.network",
    "kafka.request.logger": "pybroker.broker.requests",
    "kafka.server": "pybroker.broker",
    "kafka.server.KafkaApis": "pybroker.broker.kafka_apis",
    "kafka.server.ReplicaManager": "pybroker.replication",
    "kafka.authorizer.logger": "pybroker.broker.authorizer",
    "kafka.zookeeper": "pybroker.controller.zookeeper_store",
    "state.change.logger": "pybroker.controller.state_change",
}
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def levels() -> dict[str, str]:
    """Every logger that can be set, and its level in force."""
    ours = (name for name in logging.root.manager.loggerDict if name.split(".")[0] == "pybroker")
    return {name: _level(name) for name in (*_COUNTERPARTS, *sorted(ours))}


def set_level(name: str, level: str) -> None:
    """`name` and `level` have been checked."""
    _logger(name).setLevel(_LEVELS[level])


def unset_level(name: str) -> None:
    """Back to the level of the logger above."""
    _logger(name).setLevel(logging.NOTSET)


def check_name(name: str) -> None:
    """Raises KafkaError INVALID_CONFIG for a logger that does not exist."""
    if name not in _COUNTERPARTS and (name not in logging.root.manager.loggerDict or not name.startswith("pybroker")):
        raise KafkaError(Errors.INVALID_CONFIG, f"Logger {name} does not exist!")


def check_level(name: str, level: str) -> None:
    """Raises KafkaError INVALID_CONFIG for a level that does not exist."""
    if level not in _LEVELS:
        raise KafkaError(
            Errors.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(_LEVELS))}",
        )


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_COUNTERPARTS.get(name, name))


def _level(name: str) -> str:
    level = _logger(name).getEffectiveLevel()
    return next((word for word, number in reversed(_LEVELS.items()) if level >= number), "TRACE")
