"""Builds the coordinators and connects them with the rest of the broker: logs to write to, leadership to follow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from pybroker.broker.cold import read_cold
from pybroker.controller import paths
from pybroker.coordinator.consumer.catalog import Topic
from pybroker.coordinator.service import OFFSETS_TOPIC, GroupCoordinator
from pybroker.coordinator.settings import GroupSettings
from pybroker.storage.files import FileSlice, WouldBlock
from pybroker.storage.log import LATEST_PRODUCE, AppendInfo

if TYPE_CHECKING:
    from pybroker.broker.metadata_cache import MetadataCache
    from pybroker.config import BrokerConfig
    from pybroker.controller.configs import ConfigRepository
    from pybroker.coordinator.consumer.settings import ConsumerRules
    from pybroker.coordinator.consumer.shard import ConsumerGroups
    from pybroker.coordinator.group import Group
    from pybroker.protocol.clock import Clock
    from pybroker.protocol.timer import Timer
    from pybroker.replication.manager import ReplicaManager
    from pybroker.replication.partition import Partition
    from pybroker.storage.log import Log


_NOTHING: Mapping[str, str] = {}


class TopicLogs:
    """The partitions of an internal topic that this broker leads (the coordinator's PartitionLogs)."""

    def __init__(self, topic: str, replicas: ReplicaManager, threads: Executor, acks: int) -> None:
        self._topic = topic
        self._replicas = replicas
        self._threads = threads
        self._acks = acks

    def _led(self, index: int) -> Partition:
        partition = self._replicas.partition(self._topic, index)
        partition.check_leader()
        return partition

    def append(self, index: int, batch: bytearray, *, transactional: bool) -> int | Awaitable[int]:
        info = self._led(index).append(memoryview(batch), self._acks, LATEST_PRODUCE, from_client=False)
        return info.last_offset + 1 if isinstance(info, AppendInfo) else _end_of(info)

    def high_watermark(self, index: int) -> int:
        return self._led(index).log.high_watermark

    def bounds(self, index: int) -> tuple[int, int]:
        log = self._led(index).log
        return log.log_start_offset, log.log_end_offset

    async def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        log = self._led(index).log
        try:
            return _read(log, offset, max_bytes, False)
        except WouldBlock as cold:
            return await read_cold(self._threads, cold, partial(_read, log, offset, max_bytes))

    def watch(self, index: int, moved: Callable[[], None]) -> Callable[[], None]:
        watcher = _Watcher(moved)
        watchers = self._led(index).watchers
        watchers[watcher] = None
        return lambda: watchers.pop(watcher, None)


class _Watcher:
    """Tells of every move of a partition."""

    __slots__ = ("_moved",)

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved

    def partition_moved(self, partition: Partition) -> None:
        self._moved()


async def _end_of(appending: Awaitable[AppendInfo]) -> int:
    return (await appending).last_offset + 1


def _read(log: Log, offset: int, max_bytes: int, blocking: bool) -> bytes:
    records = log.read(offset, max_bytes, max_offset=log.log_end_offset, blocking=blocking).records
    if isinstance(records, FileSlice):
        try:
            return records.read()
        finally:
            records.release()
    return bytes(records)


class Catalog:
    """The cluster's topics, as groups of the consumer protocol see them (the coordinator's TopicCatalog)."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    @property
    def version(self) -> int:
        return self._cache.topics_version

    def topic(self, name: str) -> Topic | None:
        found = self._cache.topics.get(name)
        return None if found is None else Topic(found.id, len(found.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        return self._cache.topic_name(topic_id)

    def names(self) -> Iterable[str]:
        return self._cache.topics


class GroupConfigs:
    """What groups have set for themselves, by their ids."""

    def __init__(self, configs: ConfigRepository) -> None:
        self._own = {paths.desanitize(name): settings for name, settings in configs.all_of("groups").items()}
        configs.on_change("groups", self._changed)

    def _changed(self, name: str, settings: Mapping[str, str]) -> None:
        group_id = paths.desanitize(name)
        if settings:
            self._own[group_id] = settings
        else:
            self._own.pop(group_id, None)

    def get(self, group_id: str) -> Mapping[str, str]:
        return self._own.get(group_id, _NOTHING)


def consumer_groups(
    config: BrokerConfig, configs: ConfigRepository, cache: MetadataCache, clock: Clock
) -> Callable[[dict[str, Group]], ConsumerGroups] | None:
    """What serves the consumer protocol in a partition; None where that is not enabled.

    Its modules are imported with the first group.
    """
    if "consumer" not in config.list("group.coordinator.rebalance.protocols"):
        return None
    shared: list[ConsumerRules] = []

    def make(groups: dict[str, Group]) -> ConsumerGroups:
        from pybroker.coordinator.consumer.settings import ConsumerRules, ConsumerSettings
        from pybroker.coordinator.consumer.shard import ConsumerGroups

        if not shared:
            rules = ConsumerRules(ConsumerSettings.of(config), GroupConfigs(configs).get)
            shared.append(rules)
            config.on_change(lambda names: rules.changed(ConsumerSettings.of(config)))
        return ConsumerGroups(groups, shared[0], Catalog(cache), GroupSettings.of(config), clock)

    return make


def group_coordinator(
    config: BrokerConfig,
    configs: ConfigRepository,
    replicas: ReplicaManager,
    cache: MetadataCache,
    clock: Clock,
    timer: Timer,
    threads: Executor,
    may_serve_consumer: Callable[[], bool],
) -> GroupCoordinator:
    """The coordinator of groups; what it coordinates it is told by Coordination. `may_serve_consumer` is false while
    brokers that don't know the consumer protocol are in the cluster."""
    acks = config.int("offsets.commit.required.acks")
    coordinator = GroupCoordinator(
        TopicLogs(OFFSETS_TOPIC, replicas, threads, acks),
        lambda: len(cache.partitions(OFFSETS_TOPIC)),
        GroupSettings.of(config),
        clock,
        timer,
        write_timeout_ms=config.int("offsets.commit.timeout.ms"),
        acks=acks,
        codec=config.int("offsets.topic.compression.codec"),
        load_bytes=config.int("offsets.load.buffer.size"),
        expire_every_ms=config.int("offsets.retention.check.interval.ms"),
        new_consumer=consumer_groups(config, configs, cache, clock),
        may_serve_consumer=may_serve_consumer,
    )
    cache.on_removed.append(lambda gone: coordinator.topics_deleted({each.topic for each in gone}))
    return coordinator
