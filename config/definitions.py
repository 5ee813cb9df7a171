"""Every broker setting of Apache Kafka 3.9 and 4.x, and our own, once.

The rows stand in the definitions_*.py files, one literal table for each part of the broker. Where the two releases
differ in type, default, bounds or update mode, 3.9 decides. Nothing here is computed before it is asked for: a start
may not pay for 400 settings of which it reads 100.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pybroker.config import values
from pybroker.config.definitions_cluster import CLUSTER_SETTINGS
from pybroker.config.definitions_groups import GROUP_SETTINGS
from pybroker.config.definitions_log import LOG_SETTINGS
from pybroker.config.definitions_remote import REMOTE_SETTINGS
from pybroker.config.definitions_security import SECURITY_SETTINGS
from pybroker.config.definitions_server import OWN_SETTINGS, SERVER_SETTINGS
from pybroker.config.definitions_throttles import THROTTLE_SETTINGS
from pybroker.config.modes import PER_BROKER, READ_ONLY


class Setting(NamedTuple):
    """One row of the tables."""

    name: str
    kind: str
    """BOOLEAN, SHORT, INT, LONG, DOUBLE, STRING, LIST, CLASS or PASSWORD, see values.py."""
    default: str | None
    valid: str | None
    """Bounds in the notation of Kafka's documentation: [1,...] or [a, b], see values.check."""
    importance: str
    update: str
    """read-only (at start), per-broker or cluster-wide (both while running, the first not as a cluster default)."""
    use: str
    """served, otherwise (accepted, the help says what it means on one loop), later, nothing (has no effect here)."""
    help: str

    @property
    def sensitive(self) -> bool:
        return self.kind == "PASSWORD"

    @property
    def dynamic(self) -> bool:
        return self.update != READ_ONLY

    @property
    def per_broker(self) -> bool:
        return self.update == PER_BROKER

    def parse(self, text: str) -> Any:
        """Read and check a value. Raises ConfigError with Kafka's text."""
        value = values.parse(self.name, self.kind, text)
        values.check(self.name, self.kind, self.valid, value)
        return value


_TABLES = (
    SERVER_SETTINGS,
    OWN_SETTINGS,
    LOG_SETTINGS,
    CLUSTER_SETTINGS,
    GROUP_SETTINGS,
    REMOTE_SETTINGS,
    SECURITY_SETTINGS,
)
_ROWS = {row[0]: row for table in _TABLES for row in table}
_UNLISTED = {row[0]: row for row in THROTTLE_SETTINGS}

# Kafka's internal settings (for its own tests): accepted, and left out of what DescribeConfigs lists.
INTERNAL = frozenset(
    (
        "controller.performance.always.log.threshold.ms",
        "controller.performance.sample.period.ms",
        "group.consumer.migration.policy",
        "group.consumer.regex.refresh.interval.ms",
        "group.coordinator.new.enable",
        "group.share.enable",
        "group.share.initialize.retry.interval.ms",
        "group.share.persister.class.name",
        "internal.metadata.delete.delay.millis",
        "internal.metadata.log.segment.bytes",
        "internal.metadata.max.batch.size.in.bytes",
        "log.initial.task.delay.ms",
        "metadata.log.segment.min.bytes",
        "producer.id.expiration.check.interval.ms",
        "remote.log.index.file.cache.ttl.ms",
        "remote.log.manager.task.retry.backoff.max.ms",
        "remote.log.manager.task.retry.backoff.ms",
        "remote.log.manager.task.retry.jitter",
        "server.max.startup.time.ms",
        "share.coordinator.cold.partition.snapshot.interval.ms",
        "share.coordinator.state.topic.prune.interval.ms",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
        "zookeeper.metadata.migration.min.batch.size",
    )
)

# Where our defaults are other than those of Apache Kafka 3.9, which serves the consumer protocol with KRaft only: we
# serve it wherever all brokers are ours, with the defaults of 4.3.
OWN_DEFAULTS = {
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.migration.policy": "bidirectional",
}

# On the embedded metadata store there is one broker, so what Kafka by default spreads over three can't be.
EMBEDDED_DEFAULTS = OWN_DEFAULTS | {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


_known: dict[str, Setting] = {}


def find(name: str) -> Setting | None:
    """The setting of that exact name, or None. Names come from clients too, so only good ones are kept."""
    found = _known.get(name)
    if found is None and (row := _ROWS.get(name) or _UNLISTED.get(name)) is not None:
        found = _known[name] = Setting(*row)
    return found


def setting(name: str) -> Setting:
    """The setting of that exact name. Raises KeyError: asking for a name that isn't in the table is a mistake."""
    found = find(name)
    if found is None:
        raise KeyError(name)
    return found


def names() -> Iterator[str]:
    """All but those that are only ever dynamic."""
    return iter(_ROWS)


def is_listed(name: str) -> bool:
    """Whether it is one of `names`."""
    return name in _ROWS
