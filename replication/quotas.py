"""Throttled replicas (KIP-73): how much of them a leader sends, and a follower fetches, in a second.

A topic's settings name the replicas that are throttled, for each side; a broker's dynamic settings say at what rate,
for all of its throttled replicas together. A replica in sync is never held back, though its bytes count. Kafka's
ReplicationQuotaManager, one object a side.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pybroker.config import BrokerConfig
from pybroker.config.errors import ConfigError
from pybroker.config.topic import TOPIC_SETTINGS
from pybroker.protocol.clock import Clock
from pybroker.protocol.rate import WindowedRate

logger = logging.getLogger(__name__)

ALL = "*"
SIDES = ("leader", "follower")


class ReplicationQuota:
    """The throttle of one side. `limit` is in bytes a second, None for no limit."""

    __slots__ = ("_rate", "_replicas", "limit")

    def __init__(self, rate: WindowedRate) -> None:
        self.limit: int | None = None
        self._rate = rate
        self._replicas: dict[str, frozenset[int] | None] = {}  # partitions by topic, None for all of them

    def throttle(self, topic: str, replicas: list[str], broker_id: int) -> None:
        """This topic's setting: "partition:broker" items, of which those of this broker count, or "*"."""
        self._replicas.pop(topic, None)
        if ALL in replicas:
            self._replicas[topic] = None
            return
        pairs = [item.split(":") for item in replicas if item]
        partitions = frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)
        if partitions:
            self._replicas[topic] = partitions

    def covers(self, topic: str, index: int) -> bool:
        """Whether this partition is throttled here."""
        if topic not in self._replicas:
            return False
        partitions = self._replicas[topic]
        return partitions is None or index in partitions

    def record(self, size: int) -> None:
        """So many bytes of covered partitions went over the wire."""
        self._rate.record(size)

    @property
    def exceeded(self) -> bool:
        return self.limit is not None and self._rate.per_second() > self.limit

    def holds_back(self, topic: str, index: int) -> bool:
        """Whether nothing of this partition may go now, to or from a replica that isn't in sync."""
        return self.covers(topic, index) and self.exceeded


class ReplicationQuotas:
    """Both sides, by the settings of this broker and of topics."""

    __slots__ = ("_broker_id", "_config", "follower", "leader")

    def __init__(self, broker_id: int, config: BrokerConfig, clock: Clock) -> None:
        samples = config.int("replication.quota.window.num")
        window_ms = 1000 * config.int("replication.quota.window.size.seconds")
        self._broker_id = broker_id
        self._config = config
        self.leader = ReplicationQuota(WindowedRate(samples, window_ms, clock))
        self.follower = ReplicationQuota(WindowedRate(samples, window_ms, clock))
        self.broker_changed()
        config.on_change(self.broker_changed)

    def broker_changed(self, *_: object) -> None:
        """Settings of this broker have changed."""
        for side in SIDES:
            limit = self._config.throttle(f"{side}.replication.throttled.rate")
            quota: ReplicationQuota = getattr(self, side)
            if quota.limit != limit:
                logger.info("The limit for throttled replicas on the %s's side is %s bytes/s now", side, limit)
            quota.limit = limit

    def topic_changed(self, topic: str, settings: Mapping[str, str]) -> None:
        """The settings of a topic are these now; none for a deleted one."""
        for side in SIDES:
            name = f"{side}.replication.throttled.replicas"
            quota: ReplicationQuota = getattr(self, side)
            try:
                quota.throttle(topic, TOPIC_SETTINGS[name].parse(settings.get(name, "")), self._broker_id)
            except ConfigError as error:  # nobody checks what lies in the metadata store
                logger.error("The throttle of topic %s is left as it is: %s", topic, error)
