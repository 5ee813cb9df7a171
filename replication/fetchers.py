"""Who brings which partition: a fetcher for each leader and fetcher number (num.replica.fetchers), over which
partitions are spread by their names. Kafka's ReplicaFetcherManager.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import replace

from pybroker.protocol.clock import Clock
from pybroker.protocol.types import TopicPartition
from pybroker.replication.fetch_requests import FetchSettings
from pybroker.replication.fetcher import Connect, LeaderFetcher
from pybroker.replication.partition import Partition
from pybroker.replication.quotas import ReplicationQuota

logger = logging.getLogger(__name__)


class ReplicaFetchers:
    """The fetchers of a broker, made when there is something to follow and closed when there is not."""

    def __init__(
        self, settings: FetchSettings, connect: Connect, clock: Clock, broker_epoch: Callable[[], int] = lambda: -1,
        quota: ReplicationQuota | None = None,
    ) -> None:  # fmt: skip
        """`quota` is the followers' throttle."""
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._quota = quota
        self._fetchers: dict[tuple[int, int], LeaderFetcher] = {}
        self._where: dict[TopicPartition, LeaderFetcher] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch it from its leader, in its leader epoch."""
        self.stop(partition)
        at = partition.topic_partition
        number = zlib.crc32(at.topic.encode()) + at.partition
        key = partition.leader_id, number % self._settings.fetchers
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = LeaderFetcher(
                *key, self._settings, self._connect, self._clock, self._broker_epoch, self._quota
            )
            self._fetchers[key] = fetcher
        fetcher.add(partition)
        self._where[at] = fetcher

    def stop(self, partition: Partition) -> None:
        """Fetch it no more; harmless where it was not fetched."""
        fetcher = self._where.pop(partition.topic_partition, None)
        if fetcher is not None:
            fetcher.remove(partition.topic_partition)

    def resize(self, fetchers: int) -> None:
        """So many fetchers a leader from now on: partitions go over to those that they belong to then."""
        if fetchers == self._settings.fetchers:
            return
        logger.info("Each leader is fetched from by %d fetchers now, not %d", fetchers, self._settings.fetchers)
        self._settings = replace(self._settings, fetchers=fetchers)
        for partition in [each for fetcher in self._fetchers.values() for each in fetcher.partitions]:
            self.follow(partition)
        for key in [key for key in self._fetchers if key[1] >= fetchers]:
            self._fetchers.pop(key).close()

    def close(self) -> None:
        """Ends all connections."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._where.clear()
