"""Replication as this broker does it: fetchers and ISR changes, built over its metadata cache and connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pybroker.broker.controller_link import ControllerLink
from pybroker.broker.inter_broker import InterBrokerVersions
from pybroker.broker.isr_writes import IsrWrites
from pybroker.broker.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.controller.controller import Controller
from pybroker.controller.store import MetadataStore
from pybroker.protocol.clock import Clock
from pybroker.protocol.connection import BrokerConnection
from pybroker.replication.fetch import PartitionReader, Prefer
from pybroker.replication.fetch_requests import FetchSettings
from pybroker.replication.fetchers import ReplicaFetchers
from pybroker.replication.isr import IsrChanges, IsrSender, KnownState
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.quotas import ReplicationQuota
from pybroker.replication.selector import SELECTORS

logger = logging.getLogger(__name__)


class Replication:
    """Follows partitions and keeps ISRs from the controller's first order until `close`."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        versions: InterBrokerVersions,
        store: MetadataStore,
        manager: ReplicaManager,
        cache: MetadataCache,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        controller: Callable[[], Controller | None],
        quota: ReplicationQuota,
    ) -> None:
        """`controller` is None until there is one; its broker epoch counts. `quota` is the followers' throttle."""
        self._config = config
        self._manager = manager
        self._cache = cache
        self._loop = loop
        self._controller = controller
        self._lag_max_ms = config.int("replica.lag.time.max.ms")
        self._fetchers = ReplicaFetchers(
            _settings(broker_id, config, versions), self._connect, clock, lambda: _broker_epoch(controller()), quota
        )
        config.on_change(self._settings_changed)
        self.link = ControllerLink(broker_id, config, store, cache, loop, controller)
        self._writes = None if versions.alter_partition else IsrWrites(store, broker_id)
        changes = IsrChanges(
            broker_id, clock, self._lag_max_ms, is_alive=lambda broker: broker in cache.brokers, known=self._known
        )
        cache.on_gone.append(lambda gone: changes.lost(manager, gone))
        self._isr = IsrSender(changes, self._writes or self.link)
        manager.replicate(self._fetchers, changes)

    def _settings_changed(self, names: frozenset[str]) -> None:
        if "num.replica.fetchers" in names:
            self._fetchers.resize(_fetchers(self._config))

    async def run(self, reader: PartitionReader) -> None:
        """Looks for followers that lag, until cancelled."""
        while True:
            await asyncio.sleep(self._lag_max_ms / 2000)
            await self._isr.check(self._manager, reader.last_fetch_ms)

    async def close(self) -> None:
        self._isr.close()
        self._fetchers.close()
        if self._writes is not None:
            await self._writes.close()
        self.link.close()

    def _connect(self, leader_id: int, client_id: str) -> BrokerConnection | None:
        """As the controller said when it made it leader, or as it registered."""
        address = self._manager.leader_addresses.get(leader_id)
        endpoint = self._cache.endpoint(leader_id, self._config.inter_broker_listener)
        if endpoint is not None:
            address = endpoint.host, endpoint.port
        if address is None:
            return None
        timeout = self._config.int("replica.socket.timeout.ms")
        return BrokerConnection(*address, client_id, self._loop, request_timeout_ms=timeout, max_in_flight=1)

    def _known(self, topic: str, index: int) -> KnownState | None:
        state = self._cache.partition(topic, index)
        return None if state is None else KnownState(state.leader_epoch, state.zk_version, tuple(state.isr))


def read_from(config: BrokerConfig, cache: MetadataCache) -> Prefer | None:
    """By replica.selector.class; with one that is not known consumers read from the leader."""
    name = config.opt_str("replica.selector.class")
    if not name:
        return None
    if name not in SELECTORS:
        logger.warning("replica.selector.class=%s is not known here: consumers read from leaders", name)
    selector = SELECTORS.get(name)

    def rack_of(broker_id: int) -> str | None:
        broker = cache.brokers.get(broker_id)
        return None if broker is None else broker.rack

    return None if selector is None else selector(rack_of)


def _broker_epoch(controller: Controller | None) -> int:
    return -1 if controller is None else controller.broker_epoch


def _settings(broker_id: int, config: BrokerConfig, versions: InterBrokerVersions) -> FetchSettings:
    return FetchSettings(
        broker_id=broker_id,
        version=versions.fetch,
        offsets_version=versions.list_offsets,
        epochs_version=versions.offset_for_leader_epoch,
        max_wait_ms=config.int("replica.fetch.wait.max.ms"),
        min_bytes=config.int("replica.fetch.min.bytes"),
        max_bytes=config.int("replica.fetch.max.bytes"),
        response_max_bytes=config.int("replica.fetch.response.max.bytes"),
        backoff_ms=config.int("replica.fetch.backoff.ms"),
        fetchers=_fetchers(config),
    )


def _fetchers(config: BrokerConfig) -> int:
    return max(1, config.int("num.replica.fetchers"))
