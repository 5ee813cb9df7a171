"""Settings of the consumer protocol: the broker's, and what a group has of its own (KIP-848 and KIP-1263)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pybroker.config import BrokerConfig
from pybroker.coordinator.assignors.spec import Assignor
from pybroker.coordinator.assignors.table import ASSIGNORS

CONSUMER_PROTOCOL_NAME = "consumer"  # in group.coordinator.rebalance.protocols
# Kafka's class names, which stand in group.consumer.assignors by default.
_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Times in ms. `assignors` are names, the default first. Defaults are Kafka 4.3's."""

    enabled: bool = True
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    may_upgrade: bool = True
    may_downgrade: bool = True
    regex_refresh_interval_ms: int = 600_000
    session_timeout_bounds: tuple[int, int] = (45_000, 60_000)
    heartbeat_interval_bounds: tuple[int, int] = (5_000, 15_000)
    assignment_interval_bounds: tuple[int, int] = (0, 15_000)

    @classmethod
    def of(cls, config: BrokerConfig) -> ConsumerSettings:
        policy = config.str("group.consumer.migration.policy").lower()
        return cls(
            enabled=CONSUMER_PROTOCOL_NAME in config.list("group.coordinator.rebalance.protocols"),
            session_timeout_ms=config.int("group.consumer.session.timeout.ms"),
            heartbeat_interval_ms=config.int("group.consumer.heartbeat.interval.ms"),
            assignment_interval_ms=config.int("group.consumer.assignment.interval.ms"),
            max_size=config.int("group.consumer.max.size"),
            assignors=tuple(_CLASSES.get(name, name) for name in config.list("group.consumer.assignors")),
            may_upgrade=policy in ("upgrade", "bidirectional"),
            may_downgrade=policy in ("downgrade", "bidirectional"),
            regex_refresh_interval_ms=config.int("group.consumer.regex.refresh.interval.ms"),
            session_timeout_bounds=_bounds(config, "session.timeout.ms"),
            heartbeat_interval_bounds=_bounds(config, "heartbeat.interval.ms"),
            assignment_interval_bounds=_bounds(config, "assignment.interval.ms"),
        )


def _bounds(config: BrokerConfig, name: str) -> tuple[int, int]:
    return config.int(f"group.consumer.min.{name}"), config.int(f"group.consumer.max.{name}")


class ConsumerRules:
    """What deciders go by: `settings` (replaced when the broker's change), and the groups' own where they have any.

    `own` gives a group's configs (consumer.session.timeout.ms, ...) as they are stored. Values that the broker's bounds
    no longer allow count as the nearest bound.
    """

    __slots__ = ("_own", "assignors", "settings")

    def __init__(
        self, settings: ConsumerSettings | None = None, own: Callable[[str], Mapping[str, str]] | None = None
    ) -> None:
        self.settings = settings or ConsumerSettings()
        self._own = own
        self.assignors: dict[str, Assignor] = {
            name: ASSIGNORS[name] for name in self.settings.assignors if name in ASSIGNORS
        } or ASSIGNORS

    def changed(self, settings: ConsumerSettings) -> None:
        """The broker's settings are others now; the assignors never change while it runs."""
        self.settings = settings

    def session_timeout_ms(self, group_id: str) -> int:
        settings = self.settings
        return self._of(
            group_id, "consumer.session.timeout.ms", settings.session_timeout_ms, settings.session_timeout_bounds
        )

    def heartbeat_interval_ms(self, group_id: str) -> int:
        settings = self.settings
        return self._of(
            group_id, "consumer.heartbeat.interval.ms", settings.heartbeat_interval_ms,
            settings.heartbeat_interval_bounds,
        )  # fmt: skip

    def assignment_interval_ms(self, group_id: str) -> int:
        settings = self.settings
        return self._of(
            group_id, "consumer.assignment.interval.ms", settings.assignment_interval_ms,
            settings.assignment_interval_bounds,
        )  # fmt: skip

    def _of(self, group_id: str, name: str, default: int, bounds: tuple[int, int]) -> int:
        own = self._own(group_id).get(name) if self._own is not None else None
        if own is None:
            return default
        return min(max(int(own), bounds[0]), bounds[1])
