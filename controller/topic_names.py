"""What a topic may be called (org.apache.kafka.common.internals.Topic)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pybroker.protocol.errors import Errors, KafkaError

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
CLUSTER_METADATA = "__cluster_metadata"
"""The log of a KRaft controller: no topic may have its name."""

MAX_LENGTH = 249
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+\Z")


def validate(name: str) -> None:
    """Raises KafkaError INVALID_TOPIC_EXCEPTION with Kafka's text."""
    problem = _problem(name)
    if problem is not None:
        raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def is_valid(name: str) -> bool:
    return _problem(name) is None


def _problem(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    if not _ALLOWED.match(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def may_collide(name: str) -> bool:
    return "." in name or "_" in name


class Similar:
    """Finds topics whose names are the same in metrics, where '.' becomes '_'."""

    __slots__ = ("_by_metric_name",)

    def __init__(self) -> None:
        self._by_metric_name: dict[str, list[str]] = {}

    def update(self, names: Iterable[str]) -> None:
        for name in names:
            self._by_metric_name.setdefault(name.replace(".", "_"), []).append(name)

    def to(self, name: str) -> list[str]:
        """The names that collide with this one, itself left out."""
        if not may_collide(name):
            return []
        return [other for other in self._by_metric_name.get(name.replace(".", "_"), ()) if other != name]
