"""Replication as this broker does it: fetchers and ISR changes, built over its metadata cache and connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pybroker.broker.inter_broker import inter_broker_versions
from pybroker.broker.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.controller.controller import Controller
from pybroker.controller.state import IsrProposal
from pybroker.controller.store import StoreError
from pybroker.protocol.clock import Clock
from pybroker.protocol.connection import BrokerConnection
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID
from pybroker.replication.fetch import PartitionReader, Prefer
from pybroker.replication.fetch_requests import FetchSettings
from pybroker.replication.fetchers import ReplicaFetchers
from pybroker.replication.isr import IsrChanges, IsrSender, KnownState
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.quotas import ReplicationQuota
from pybroker.replication.selector import SELECTORS

logger = logging.getLogger(__name__)

ALTER_PARTITION, HIGHEST_ALTER_PARTITION = 56, 3
BY_NAME = 1  # the last version that names topics


class Replication:
    """Follows partitions and keeps ISRs from the controller's first order until `close`."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
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
            _settings(broker_id, config), self._connect, clock, lambda: _broker_epoch(controller()), quota
        )
        config.on_change(self._settings_changed)
        self._link = ControllerLink(broker_id, config, cache, loop, controller)
        changes = IsrChanges(
            broker_id, clock, self._lag_max_ms, is_alive=lambda broker: broker in cache.brokers, known=self._known
        )
        self._isr = IsrSender(changes, self._link)
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
        self._link.close()

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


class ControllerLink:
    """AlterPartition, to the controller in this process or over a connection to the one that UpdateMetadata named."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        cache: MetadataCache,
        loop: asyncio.AbstractEventLoop,
        controller: Callable[[], Controller | None],
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._cache = cache
        self._loop = loop
        self._controller = controller
        self._connection: BrokerConnection | None = None

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """`request` names topics by name and by id. Raises OSError, and KafkaError for the request as a whole."""
        controller = self._controller()
        if controller is None:
            raise ConnectionError("this broker is not registered")
        request.broker_epoch = controller.broker_epoch
        if self._cache.controller_id == self._broker_id:
            return await _alter_here(controller, request)
        connection = self._to_controller()
        version = await connection.highest_version(ALTER_PARTITION, HIGHEST_ALTER_PARTITION)
        if any(topic.topic_id == ZERO_UUID for topic in request.topics):
            version = min(version, BY_NAME)
        response: AlterPartitionResponse = await connection.send(request, version)
        return response

    def _to_controller(self) -> BrokerConnection:
        endpoint = self._cache.endpoint(self._cache.controller_id, self._config.inter_broker_listener)
        if endpoint is None:
            raise ConnectionError("no controller is known")
        known = self._connection
        if known is None or (known.host, known.port) != (endpoint.host, endpoint.port):
            self.close()
            known = self._connection = BrokerConnection(
                endpoint.host, endpoint.port, str(self._broker_id), self._loop,
                request_timeout_ms=self._config.int("controller.socket.timeout.ms"),
            )  # fmt: skip
        return known

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def _alter_here(controller: Controller, request: AlterPartitionRequest) -> AlterPartitionResponse:
    proposals = [
        IsrProposal(
            TopicPartition(topic.topic_name, each.partition_index),
            each.leader_epoch, tuple(each.new_isr), bool(each.leader_recovery_state), each.partition_epoch,
        )
        for topic in request.topics
        for each in topic.partitions
    ]  # fmt: skip
    try:
        answers = await controller.propose_isrs(request.broker_id, request.broker_epoch, proposals)
    except StoreError as error:
        raise ConnectionError(f"the metadata store: {error}") from error
    topics: dict[str, ResponseTopicData] = {}
    for at, (error_code, state) in answers.items():
        row = ResponsePartitionData(partition_index=at.partition, error_code=error_code)
        if state is not None:
            row.leader_id, row.leader_epoch, row.isr = state.leader, state.leader_epoch, list(state.isr)
            row.partition_epoch = state.partition_epoch
        topics.setdefault(at.topic, ResponseTopicData(topic_name=at.topic)).partitions.append(row)
    return AlterPartitionResponse(error_code=Errors.NONE, topics=list(topics.values()))


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


def _settings(broker_id: int, config: BrokerConfig) -> FetchSettings:
    return FetchSettings(
        broker_id=broker_id,
        version=inter_broker_versions(config.str("inter.broker.protocol.version")).fetch,
        max_wait_ms=config.int("replica.fetch.wait.max.ms"),
        min_bytes=config.int("replica.fetch.min.bytes"),
        max_bytes=config.int("replica.fetch.max.bytes"),
        response_max_bytes=config.int("replica.fetch.response.max.bytes"),
        backoff_ms=config.int("replica.fetch.backoff.ms"),
        fetchers=_fetchers(config),
    )


def _fetchers(config: BrokerConfig) -> int:
    return max(1, config.int("num.replica.fetchers"))
