"""One broker: the place where everything is built, every task is started and stopped.

Order of a start: settings, file limit, log directories locked, metadata store, recovery, ports claimed, registered and
elected, first metadata known, and only then are connections accepted. A stop runs it backwards.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from pybroker import __version__
from pybroker.broker.broker_channels import BrokerChannels
from pybroker.broker.controller_orders import ControllerOrders
from pybroker.broker.coordination import Coordination
from pybroker.broker.fetch_sessions import FetchSessionCache
from pybroker.broker.foreign_brokers import ForeignBrokers
from pybroker.broker.inter_broker import InterBrokerVersions, inter_broker_versions
from pybroker.broker.joining import know_the_cluster
from pybroker.broker.kafka_apis import KafkaApis
from pybroker.broker.logging_setup import LoopMonitor, setup_logging
from pybroker.broker.metadata_cache import MetadataCache
from pybroker.broker.metadata_store import open_store
from pybroker.broker.network.settings import NetworkSettings
from pybroker.broker.network.socket_server import SocketServer
from pybroker.broker.services import Services
from pybroker.broker.store_watch import StoreWatch
from pybroker.config import BrokerConfig, Endpoint, LogConfig
from pybroker.controller import paths
from pybroker.controller.configs import ConfigRepository
from pybroker.controller.controller import Controller, Rebalance
from pybroker.controller.producer_ids import ProducerIds, TakeBlock, allocate_block
from pybroker.controller.registration import RegistrationError, prepare_store
from pybroker.controller.state import Abilities
from pybroker.controller.store import MetadataStore, StoreError
from pybroker.controller.topics import TopicWriter
from pybroker.protocol.clock import SystemClock
from pybroker.protocol.timer import Timer
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.work import Workshop
from pybroker.replication.fetch import PartitionReader
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.quotas import ReplicationQuotas
from pybroker.storage.log_manager import LogManager
from pybroker.storage.meta_properties import WrongDirectory

if TYPE_CHECKING:
    from pybroker.broker.replication import Replication
    from pybroker.coordinator.service import GroupCoordinator

logger = logging.getLogger(__name__)

OK, FAILED = 0, 1
READER_THREADS = 4
DRAIN_SECONDS = 5.0
# How long a start waits for the controller, which may be another broker, to tell of the cluster.
# A thread that computes gives the loop its turn after this long (the default of 5 ms is a client's whole budget).
SWITCH_SECONDS = 0.0005
FILES_PER_PARTITION = 2  # the active segment and one more, of those that are read
FILES_ASIDE = 256  # connections of a small broker, checkpoints, the store


def run(config: BrokerConfig, ready_file: str | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT; the process's exit code. `ready_file` gets the bound addresses as JSON."""
    sys.setswitchinterval(SWITCH_SECONDS)
    handler = setup_logging()
    try:
        for warning in config.warnings:
            logger.warning("%s", warning)
        if ready_file is not None:
            _check_writable(ready_file)
        return uvloop.run(_run(config, ready_file))
    except (WrongDirectory, RegistrationError, StoreError, OSError) as error:
        logger.error("The broker can't start: %s", error)
        return FAILED
    finally:
        handler.close()


def _check_writable(path: str) -> None:
    """OSError where the file could not be written, before anything else is done."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    trial = Path(f"{path}.tmp")
    trial.touch()
    trial.unlink()


async def _run(config: BrokerConfig, ready_file: str | None) -> int:
    stop = _Stop(asyncio.get_running_loop())
    broker = Broker(config)
    try:
        if await stop.interrupts(broker.start()):
            return OK
        broker.announce(ready_file)
        await stop.wanted.wait()
        logger.info("Shutting down; another signal ends the broker at once")
        await broker.leave()
        return OK if broker.failure is None else FAILED
    finally:
        await broker.stop()


class _Stop:
    """The first SIGTERM or SIGINT asks for an orderly stop, the second ends the process as it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wanted = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    async def interrupts(self, starting: Coroutine[Any, Any, None]) -> bool:
        """Carry out the start; True when a signal has ended it, which may wait for ZooKeeper or for an old session."""
        start = asyncio.ensure_future(starting)
        wanted = asyncio.ensure_future(self.wanted.wait())
        await asyncio.wait({start, wanted}, return_when=asyncio.FIRST_COMPLETED)
        wanted.cancel()
        if start.done():
            start.result()
            return False
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        return True

    def _signalled(self, number: int) -> None:
        if self.wanted.is_set():
            os._exit(128 + number)
        self.wanted.set()


class Broker:
    """A broker in this process. `start` raises what keeps it from starting; `stop` may be called at any time."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.clock = SystemClock()
        self.loop = asyncio.get_running_loop()
        self.timer = Timer(self.clock, self.loop)
        self.readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="reader")
        self.monitor = LoopMonitor(self.loop)
        self.failure: str | None = None
        self.log_manager: LogManager | None = None
        self.store: MetadataStore | None = None
        self.server: SocketServer | None = None
        self.channels: BrokerChannels | None = None
        self.controller: Controller | None = None
        self.replication: Replication | None = None  # a cluster of one has nothing to replicate
        self.services: Services | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Build and start everything; returns when clients can come."""
        config = self.config
        directories = [Path(entry) for entry in config.log_dirs]
        _raise_file_limit()
        logs = self.log_manager = LogManager(config, directories, self.clock, on_dir_failure=self._directory_failed)
        known_cluster_id = logs.open()
        self.store = await open_store(config, directories)
        cluster_id = await prepare_store(self.store, known_cluster_id, own_store=not config.zookeeper)
        broker_id = await self._broker_id(logs)
        logs.check_identity(broker_id, cluster_id)

        configs = ConfigRepository(self.store, self.clock)
        await configs.load()
        self._follow_configs(configs, broker_id)
        logs.load(configs.topics())
        _check_file_limit(len(logs.logs))

        services = self.services = self._services(broker_id, cluster_id, configs, logs)
        network = NetworkSettings.of(config)
        config.on_change(lambda names: self._network_changed(network))
        self.server = SocketServer(self.loop, self.clock, self.timer, network, KafkaApis(services))
        bound = self.server.bind(config.listeners)
        self.controller = services.controller = self._controller(services, bound)
        await self.controller.start()
        self._tasks.append(self.loop.create_task(configs.run(), name="config changes"))
        if config.zookeeper:
            from pybroker.broker.health import Health

            await services.foreign_brokers.load()
            self._tasks.append(self.loop.create_task(services.foreign_brokers.run(), name="foreign brokers"))
            interval = config.int("zookeeper.health.check.interval.ms") / 1000
            health = Health(self.store, services.replica_manager, services.metadata_cache, broker_id, interval)
            self._tasks.append(self.loop.create_task(health.run(), name="health"))
        if self.replication is not None:
            replicating = self.replication.run(services.partition_reader)
            self._tasks.append(self.loop.create_task(replicating, name="replication"))
        logs.start(self.loop, self.timer, services.workshop)
        self.monitor.start()
        _calm_collector()
        if config.zookeeper:
            services.metadata_cache.complete.clear()
        self.server.start()
        services.coordination.begin()
        await know_the_cluster(services.orders, services.metadata_cache, self.store)

    def _services(self, broker_id: int, cluster_id: str, configs: ConfigRepository, logs: LogManager) -> Services:
        assert self.store is not None
        config = self.config
        versions = inter_broker_versions(config.str("inter.broker.protocol.version"))
        cache = MetadataCache(cluster_id, broker_id)
        replicas = ReplicaManager(broker_id, logs, self.clock, cache.partition, configs.topic)
        store_watch = StoreWatch(self.clock)
        self.store.on_session(store_watch.session_changed)
        self.store.on_session(replicas.session_changed)
        quotas = ReplicationQuotas(broker_id, config, self.clock)
        for topic, settings in configs.topics().items():
            quotas.topic_changed(topic, settings)
        configs.on_change("topics", quotas.topic_changed)
        prefer = None
        if config.zookeeper:
            from pybroker.broker.replication import Replication, read_from

            prefer = read_from(config, cache)
            self.replication = Replication(
                broker_id, config, versions, self.store, replicas, cache, self.clock, self.loop,
                lambda: self.controller, quotas.follower,
            )  # fmt: skip

        def build_groups() -> GroupCoordinator:
            from pybroker.broker.coordinators import group_coordinator

            return group_coordinator(
                config, configs, replicas, cache, self.clock, self.timer, self.readers, lambda: foreign_brokers.none
            )

        coordination = Coordination(replicas, self.loop, build_groups)
        foreign_brokers = ForeignBrokers(self.store)
        foreign_brokers.on_change.append(coordination.served_protocols_changed)
        return Services(
            broker_id=broker_id,
            cluster_id=cluster_id,
            config=config,
            clock=self.clock,
            timer=self.timer,
            store=self.store,
            store_watch=store_watch,
            log_manager=logs,
            replica_manager=replicas,
            orders=ControllerOrders(
                replicas, cache, configs, lambda: -1 if self.controller is None else self.controller.broker_epoch
            ),
            partition_reader=PartitionReader(replicas.partition, self.clock.monotonic_ms, prefer, quotas.leader),
            replication_quotas=quotas,
            fetch_sessions=FetchSessionCache(
                config.int("max.incremental.fetch.session.cache.slots"), self.clock.monotonic_ms
            ),
            fetch_max_bytes=config.int("fetch.max.bytes"),
            reader_threads=self.readers,
            workshop=Workshop(self.readers),
            metadata_cache=cache,
            topics=TopicWriter(self.store, cache, config, configs, topic_ids=versions.topic_ids),
            configs=configs,
            producer_ids=ProducerIds(self._blocks(broker_id, versions)),
            coordination=coordination,
            foreign_brokers=foreign_brokers,
        )

    def _blocks(self, broker_id: int, versions: InterBrokerVersions) -> TakeBlock:
        """Where blocks of producer ids come from."""
        assert self.store is not None
        if self.replication is not None and versions.allocate_producer_ids:
            return self.replication.link.allocate_producer_ids
        return partial(allocate_block, self.store, broker_id)

    def _controller(self, services: Services, bound: tuple[Endpoint, ...]) -> Controller:
        def unclean_allowed(topic: str) -> bool:
            return LogConfig.from_broker(self.config, services.configs.topic(topic)).unclean_leader_election_enable

        config = self.config
        versions = inter_broker_versions(config.str("inter.broker.protocol.version"))
        channels = self.channels = BrokerChannels(
            services.broker_id,
            services.orders,
            lambda broker_id: services.controller.broker(broker_id),
            config.inter_broker_listener,
            versions,
            self.loop,
            config.int("controller.socket.timeout.ms"),
        )
        return Controller(
            services.store,
            channels,
            _node(config, services.broker_id, bound, has_features=versions.features > 0),
            inter_broker_listener=config.inter_broker_listener,
            clock=self.clock,
            unclean_election_allowed=unclean_allowed,
            rebalance=_rebalance(config),
            abilities=Abilities(
                versions.topic_ids, versions.alter_partition, versions.leader_recovery, versions.features
            ),
        )

    async def _broker_id(self, logs: LogManager) -> int:
        """broker.id, else the one in meta.properties, else the next above reserved.broker.max.id (as Kafka does)."""
        configured = self.config.int("broker.id")
        if configured >= 0:
            return configured
        for directory in logs.directories:
            if directory.properties is not None and directory.properties.broker_id is not None:
                return directory.properties.broker_id
        assert self.store is not None
        stat = await self.store.set(paths.BROKER_SEQUENCE, b"")
        return self.config.int("reserved.broker.max.id") + stat.version

    def _follow_configs(self, configs: ConfigRepository, broker_id: int) -> None:
        """Dynamic settings: now, and whenever they change."""
        logs = self.log_manager
        assert logs is not None

        def apply(*_: object) -> None:
            unclean = self.config.bool("unclean.leader.election.enable")
            for complaint in self.config.apply_dynamic(configs.broker(broker_id), configs.broker_defaults()):
                logger.error("A dynamic setting is ignored: %s", complaint)
            if self.services is not None:
                self.services.fetch_max_bytes = self.config.int("fetch.max.bytes")
            if self.controller is not None and self.config.bool("unclean.leader.election.enable") != unclean:
                self.controller.defaults_changed()

        apply()
        configs.on_change("brokers", apply)
        configs.on_change("topics", logs.update_topic_config)
        configs.on_change("topics", self._topic_settings_changed)

    def _topic_settings_changed(self, topic: str, settings: Mapping[str, str]) -> None:
        if self.controller is not None:
            self.controller.settings_changed(topic)

    def _network_changed(self, settings: NetworkSettings) -> None:
        settings.update(self.config)
        if self.server is not None:
            self.server.reconfigure()

    def _directory_failed(self, path: Path, lost: list[TopicPartition]) -> None:
        """A log directory went offline. Without any left the broker has nothing to serve: it ends, as Kafka's does."""
        if self.services is not None:
            self.services.replica_manager.logs_went_offline(lost)
        assert self.log_manager is not None
        if self.services is not None and self.config.zookeeper and self.log_manager.online:
            self._tasks.append(self.loop.create_task(self._tell_of_lost_directory(self.services.broker_id)))
        if not self.log_manager.online:
            self.failure = f"no log directory is left, the last was {path}"
            logger.critical("The broker shuts down: %s", self.failure)
            os.kill(os.getpid(), signal.SIGTERM)

    async def _tell_of_lost_directory(self, broker_id: int) -> None:
        """The controller asks for what is left upon it."""
        assert self.store is not None
        try:
            await self.store.create(paths.log_dir_event(), paths.encode_log_dir_event(broker_id), sequential=True)
        except StoreError as error:
            logger.error("The controller was not told of the lost log directory: %s", error)

    def announce(self, ready_file: str | None) -> None:
        """One line that says where clients can come, and the same as JSON for scripts."""
        assert self.server is not None and self.services is not None
        listeners = _told(self.config, self.server.endpoints)
        address = ",".join(_address(endpoint) for endpoint in listeners)
        logger.info(
            "pybroker %s is ready: bootstrap.servers=%s (broker id %d, data in %s)",
            __version__, address, self.services.broker_id, ", ".join(self.config.log_dirs),
        )  # fmt: skip
        if ready_file is not None:
            first = listeners[0]
            content = {
                "pid": os.getpid(),
                "host": first.host,
                "port": first.port,
                "listeners": {each.name: {"host": each.host, "port": each.port} for each in listeners},
            }
            temporary = f"{ready_file}.tmp"
            Path(temporary).write_text(json.dumps(content) + "\n", encoding="utf-8")
            os.replace(temporary, ready_file)

    async def leave(self) -> None:
        """In a cluster, have others lead what this broker leads, while it still serves."""
        config, services = self.config, self.services
        if not config.zookeeper or not config.bool("controlled.shutdown.enable") or self.failure is not None:
            return
        assert services is not None
        from pybroker.broker.leaving import hand_over

        cache, replicas = services.metadata_cache, services.replica_manager
        await hand_over(services.broker_id, config, cache, replicas, services.controller)

    async def stop(self) -> None:
        """End everything, in the reverse order of the start: what was acknowledged is on disk when it returns."""
        if self.server is not None:
            self.server.stop_accepting()
            if self.services is not None:
                self.services.coordination.close()
            await self.server.drain(DRAIN_SECONDS)
            self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.controller is not None:
            await self.controller.stop()
        if self.channels is not None:
            self.channels.close()
        if self.replication is not None:
            await self.replication.close()
        if self.services is not None:
            self.services.producer_ids.close()
        self.monitor.stop()
        self.timer.close()
        if self.log_manager is not None:
            await self.log_manager.settle()
        self.readers.shutdown(wait=False, cancel_futures=True)
        if self.log_manager is not None:
            await self.loop.run_in_executor(None, self.log_manager.shutdown)
        if self.store is not None:
            await self.store.close()


def _calm_collector() -> None:
    """Requests leave no cycles, and what a start has made stays: the collector may look seldom, and not there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _told(config: BrokerConfig, bound: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """The advertised listeners, with the ports that the system chose where a port was 0."""
    ports = {endpoint.name: endpoint.port for endpoint in bound}
    return tuple(
        endpoint if endpoint.port else endpoint._replace(port=ports.get(endpoint.name, 0))
        for endpoint in config.advertised_listeners
    )


def _address(endpoint: Endpoint) -> str:
    return f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"


def _node(
    config: BrokerConfig, broker_id: int, bound: tuple[Endpoint, ...], *, has_features: bool
) -> paths.BrokerNode:
    return paths.BrokerNode(
        broker_id,
        tuple(
            paths.Endpoint(each.name, each.host, each.port, each.security_protocol) for each in _told(config, bound)
        ),
        rack=config.opt_str("broker.rack"),
        features={} if has_features else None,
        release=__version__,
    )


def _rebalance(config: BrokerConfig) -> Rebalance | None:
    """When leaders are moved back; a broker alone has nothing to move."""
    if not config.zookeeper or not config.bool("auto.leader.rebalance.enable"):
        return None
    interval = config.int("leader.imbalance.check.interval.seconds")
    return Rebalance(interval, config.int("leader.imbalance.per.broker.percentage"))


def _raise_file_limit() -> None:
    """As many open files as the system allows. Comes before the logs, which take their share of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_file_limit(partitions: int) -> None:
    """A warning where the partitions alone need more open files than there may be."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = partitions * FILES_PER_PARTITION + FILES_ASIDE
    if hard != resource.RLIM_INFINITY and hard < needed:
        logger.warning(
            "%d partitions need about %d open files, the limit is %d: raise it (ulimit -n, or LimitNOFILE in systemd)",
            partitions, needed, hard,
        )  # fmt: skip
