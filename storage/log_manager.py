"""All logs of this broker, over all its log directories (Kafka's LogManager).

The life of one: `open` (locks, identity), `check_identity`, `load` (recovery after a crash), all before the listeners
accept; `start` (upkeep); `shutdown`. Everything but `shutdown` and `load` is for the event loop and returns at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pybroker.config import BrokerConfig, LogConfig
from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.timer import Timer
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import uuid_to_text
from pybroker.protocol.work import Workshop
from pybroker.storage import checkpoints
from pybroker.storage.checkpoints import CorruptCheckpoint
from pybroker.storage.cleaner.cleaner import LogCleaner
from pybroker.storage.directory import DELETE_SUFFIX, partition_directory, suffixed_directory
from pybroker.storage.files import PageCache
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.loader import Loading, load_partition
from pybroker.storage.log import Log
from pybroker.storage.log_directory import LogDirectory
from pybroker.storage.log_io import LogIo
from pybroker.storage.log_mover import LogMover
from pybroker.storage.log_upkeep import LogUpkeep
from pybroker.storage.meta_properties import (
    WrongDirectory,
    check_meta_properties,
    cluster_id_of,
    write_meta_properties,
)
from pybroker.storage.partition_metadata import write_topic_id
from pybroker.storage.producer_state import ProducerStates
from pybroker.storage.startup import Found, Startup

logger = logging.getLogger(__name__)

_RUN_OUT = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM))

DirFailure = Callable[[Path, list[TopicPartition]], None]


class ReplicaDescription(NamedTuple):
    """One replica as DescribeLogDirs tells it: bytes, and how far it lags (0 for one that is in use)."""

    topic_partition: TopicPartition
    size: int
    offset_lag: int
    is_future: bool


class DirectoryDescription(NamedTuple):
    """One log directory as DescribeLogDirs tells it; -1 bytes where the volume does not say."""

    path: Path
    error: Errors
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaDescription]


class LogManager:
    """The logs, `logs` by partition. It is the LogHost of each of them."""

    def __init__(
        self, config: BrokerConfig, dirs: Sequence[Path], clock: Clock, *, on_dir_failure: DirFailure | None = None
    ) -> None:
        """`on_dir_failure(path, partitions)` is called when a directory goes offline; see `online`."""
        self.config = config
        self.clock = clock
        self.cache = PageCache()
        self.directories = [LogDirectory(path) for path in dict.fromkeys(path.absolute() for path in dirs)]
        self.logs: dict[TopicPartition, Log] = {}
        self.on_dir_failure = on_dir_failure
        self.io = LogIo(self)
        self.upkeep = LogUpkeep(self)
        self.cleaner = LogCleaner(self)
        self.mover = LogMover(self)
        self._topics: dict[str, dict[int, Log]] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._offline: dict[TopicPartition, LogDirectory] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._configs: dict[frozenset[tuple[str, str]], LogConfig] = {}
        self._doomed: list[Path] = []  # directories named -delete that were found at start
        self._futures: list[tuple[TopicPartition, Path]] = []  # those named -future
        config.on_change(self._config_changed)

    # --- before the listeners accept -----------------------------------------------------------------------------

    def open(self) -> str | None:
        """Lock the log directories and read whose they are; the cluster id they name, if any.

        WrongDirectory if one of them must not be used, or none can.
        """
        real: dict[Path, Path] = {}
        for directory in self.directories:
            other = real.setdefault(directory.path.resolve(), directory.path)
            if other != directory.path:
                raise WrongDirectory(f"Duplicate log directory found: {directory.path} and {other} are the same")
        for directory in self.directories:
            directory.open()
        self._check_any_online()
        return cluster_id_of(directory.properties for directory in self.directories)

    def check_identity(self, broker_id: int, cluster_id: str) -> None:
        """Refuse the directories of another broker or cluster (WrongDirectory), and sign those without an owner."""
        found = {directory.path: directory.properties for directory in self.online}
        missing = check_meta_properties(found, broker_id, cluster_id)
        for directory in self.online:
            if directory.path in missing:
                try:
                    write_meta_properties(directory.path, broker_id, cluster_id)
                except OSError as error:
                    directory.fail(error)

    def load(self, overrides: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Load every partition there is, recovering those of a directory that was not left cleanly.

        `overrides` are the topics' own settings. Raises WrongDirectory for what stops the broker, naming the file and
        the remedy: a foreign directory, one partition in two directories, no directory left that works.
        """
        started = time.monotonic()
        topics = overrides or {}
        startup = Startup(
            self.online,
            lambda topic: self._log_config(topics.get(topic, {})),
            self.config.int("producer.id.expiration.ms"),
            self.clock.now_ms(),
        )
        startup.run(self.config.int("num.recovery.threads.per.data.dir"), self._open_found)
        self._doomed, self._futures = startup.doomed, startup.futures
        for topic_partition, directory in startup.offline.items():
            self._forget(topic_partition)
            self._offline[topic_partition] = directory
        self._check_any_online()
        took = (time.monotonic() - started) * 1000
        logger.info("Loaded %d partitions from %d log directories in %d ms", len(self.logs), len(self.online), took)

    def _open_found(self, found: Found, loading: Loading) -> None:
        home, topic_partition, _ = found
        watermark = home.checkpointed(checkpoints.REPLICATION_OFFSET, topic_partition)
        log = self._open_log(topic_partition, loading, watermark)
        log.cleaned_to = home.checkpointed(checkpoints.CLEANER_OFFSET, topic_partition)
        self._add(home, topic_partition, log, watermark)

    def _open_log(self, topic_partition: TopicPartition, loading: Loading, high_watermark: int = 0) -> Log:
        loaded = load_partition(loading, self.cache)
        return Log(
            topic_partition,
            loaded.directory,
            loading.config,
            self.io,
            segments=loaded.segments,
            producers=loaded.producers,
            leader_epochs=loaded.leader_epochs,
            log_start_offset=loaded.log_start_offset,
            log_end_offset=loaded.log_end_offset,
            recovery_point=loaded.recovery_point,
            high_watermark=high_watermark,
            topic_id=loaded.topic_id,
        )

    def _check_any_online(self) -> None:
        if not self.online:
            reasons = "; ".join(f"{directory}: {directory.failure}" for directory in self.directories)
            raise WrongDirectory(f"No log directory can be used. {reasons}")

    def start(self, loop: asyncio.AbstractEventLoop, timer: Timer, workshop: Workshop | None = None) -> None:
        """Begin with what is done from time to time: retention, flushing, checkpoints, removals, compaction. Without a
        `workshop` records are converted at once."""
        self.io.start(loop, timer, workshop)
        self.upkeep.start(loop)
        self.cleaner.start(loop)
        self.mover.start(loop, self._futures)
        for path in self._doomed:
            self.io.remove_directory(path, self.config.int("log.segment.delete.delay.ms"))
        self._doomed.clear()

    # --- logs ----------------------------------------------------------------------------------------------------

    @property
    def online(self) -> list[LogDirectory]:
        """The directories that work; without any the broker cannot go on."""
        return [directory for directory in self.directories if directory.online]

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log, None if it has none here, or has it in a directory that is offline."""
        return self.logs.get(topic_partition)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's log lies in a directory that is offline (KAFKA_STORAGE_ERROR)."""
        return topic_partition in self._offline

    def may_be_offline(self, topic_partition: TopicPartition, *, is_new: bool) -> bool:
        """As is_offline, or it has no log here and, unless it `is_new`, may have one in a directory that is offline."""
        if topic_partition in self.logs:
            return False
        online = self.online
        return topic_partition in self._offline or not online or (not is_new and len(online) < len(self.directories))

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """The high watermark that the last run left, 0 if there is none."""
        return self._high_watermarks.get(topic_partition, 0)

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        overrides: Mapping[str, str],
        *,
        is_new: bool = False,
    ) -> Log:
        """The partition's log, made in the directory with the fewest partitions if there is none.

        Raises KafkaError INCONSISTENT_TOPIC_ID when it belongs to another topic of that name, KAFKA_STORAGE_ERROR when
        the disk fails, or when, unless `is_new`, the log may lie in a directory that is offline.
        """
        log = self.logs.get(topic_partition)
        if log is not None:
            self._settle_topic_id(log, topic_id)
            return log
        if self.may_be_offline(topic_partition, is_new=is_new):
            raise KafkaError(
                Errors.KAFKA_STORAGE_ERROR, f"Can not create log for {topic_partition}: a log directory is offline"
            )
        fewest = min(self.online, key=lambda candidate: len(candidate.logs))
        directory = self.mover.preferred(topic_partition) or fewest
        try:
            log = self._create(directory, topic_partition, topic_id, overrides)
        except (OSError, CorruptCheckpoint) as error:
            self.fail_directory(directory, error)
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Error while creating log for {topic_partition}") from error
        self._add(directory, topic_partition, log, 0)
        return log

    def _create(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        topic_id: bytes | None,
        overrides: Mapping[str, str],
    ) -> Log:
        path = directory.path / partition_directory(topic_partition)
        directory.make_way(topic_partition)
        try:
            path.mkdir()
        except FileExistsError:  # left by a creation that failed half-way
            if topic_id is not None:
                write_topic_id(path, topic_id)
            expiration_ms = self.config.int("producer.id.expiration.ms")
            loading = Loading(path, self._log_config(overrides), False, 0, 0, expiration_ms, self.clock.now_ms())
            return self._open_log(topic_partition, loading)
        if topic_id is not None:
            write_topic_id(path, topic_id)
        log = Log(
            topic_partition,
            path,
            self._log_config(overrides),
            self.io,
            segments=[],
            producers=ProducerStates(path, expiration_ms=self.config.int("producer.id.expiration.ms")),
            leader_epochs=LeaderEpochCache(path),
            topic_id=topic_id,
        )
        logger.info("Created the log of %s in %s", topic_partition, path)
        return log

    def _settle_topic_id(self, log: Log, topic_id: bytes | None) -> None:
        if topic_id is None or log.topic_id == topic_id:
            return
        if log.topic_id is not None:
            raise KafkaError(
                Errors.INCONSISTENT_TOPIC_ID,
                f"Tried to assign topic ID {uuid_to_text(topic_id)} to log for topic partition {log.topic_partition}, "
                f"but log already contained topic ID {uuid_to_text(log.topic_id)}",
            )
        try:
            write_topic_id(log.directory, topic_id)
        except OSError as error:
            self.fail_directory(self._homes[log.topic_partition], error)
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR) from error
        log.topic_id = topic_id

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take the partition's log, if any, out of service; its files go after file.delete.delay.ms."""
        log = self.logs.get(topic_partition)
        if log is None:
            return
        directory = self._homes[topic_partition]
        self._forget(topic_partition)
        target = directory.path / suffixed_directory(topic_partition, DELETE_SUFFIX)
        try:
            log.release(Errors.NOT_LEADER_OR_FOLLOWER)
            log.directory.rename(target)
            log.moved(target)
        except OSError as error:
            self.fail_directory(directory, error)
            return
        self.io.remove_directory(target, log.config.file_delete_delay_ms)
        self.upkeep.checkpoint_soon()
        logger.info("The log of %s is renamed to %s and will be removed", topic_partition, target.name)

    def _add(self, directory: LogDirectory, topic_partition: TopicPartition, log: Log, high_watermark: int) -> None:
        self.logs[topic_partition] = directory.logs[topic_partition] = log
        self._topics.setdefault(topic_partition.topic, {})[topic_partition.partition] = log
        self._homes[topic_partition] = directory
        directory.writer.attend(log)
        self._high_watermarks[topic_partition] = high_watermark

    def _forget(self, topic_partition: TopicPartition) -> None:
        if self.logs.pop(topic_partition, None) is None:
            return
        self.cleaner.abort(topic_partition)
        self.mover.cancel(topic_partition)
        del self._homes[topic_partition].logs[topic_partition]
        del self._homes[topic_partition]
        self._high_watermarks.pop(topic_partition, None)
        partitions = self._topics[topic_partition.topic]
        del partitions[topic_partition.partition]
        if not partitions:
            del self._topics[topic_partition.topic]

    def rehome(self, log: Log, directory: LogDirectory) -> None:
        """The log lies in another directory now."""
        topic_partition = log.topic_partition
        del self._homes[topic_partition].logs[topic_partition]
        directory.logs[topic_partition] = log
        self._homes[topic_partition] = directory
        directory.writer.attend(log)

    # --- settings ------------------------------------------------------------------------------------------------

    def update_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """The topic's own settings are these now."""
        config = self._log_config(overrides)
        for log in self._topics.get(topic, {}).values():
            log.update_config(config)

    def _log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """The settings of a topic; topics with equal settings share one object."""
        key = frozenset(overrides.items())
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = LogConfig.from_broker(self.config, dict(overrides))
        return config

    def _config_changed(self, names: frozenset[str]) -> None:
        """The broker's settings have changed: most do not concern the logs."""
        if "producer.id.expiration.ms" in names:
            for log in self.logs.values():
                log.producers.expiration_ms = self.config.int("producer.id.expiration.ms")
        replaced: dict[LogConfig, LogConfig] = {}
        for key, old in self._configs.items():
            new = LogConfig.from_broker(self.config, dict(key))
            if any(getattr(old, name) != getattr(new, name) for name in LogConfig.__slots__):
                replaced[old] = self._configs[key] = new
        if replaced:
            for log in self.logs.values():
                config = replaced.get(log.config)
                if config is not None:
                    log.update_config(config)

    # --- failure, description, end -------------------------------------------------------------------------------

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory:
        """The log directory of a partition that is here (KeyError otherwise)."""
        return self._homes[topic_partition]

    def home(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """The log directory of a partition, None where it is not here."""
        return self._homes.get(topic_partition)

    def fail_directory(self, directory: LogDirectory, error: BaseException) -> None:
        """A file operation failed: the directory is offline from now on, and so are its logs.

        Not where something has merely run out, disk space or descriptors: that passes, and nothing is lost by it.
        """
        if not directory.online:
            return
        if isinstance(error, OSError) and error.errno in _RUN_OUT:
            logger.error("A file operation in %s failed: %s", directory, error)
            return
        directory.fail(error)
        self.mover.cancel_to(directory)
        lost = list(directory.logs)
        for topic_partition in lost:
            log = self.logs[topic_partition]
            self._forget(topic_partition)
            self._offline[topic_partition] = directory
            with suppress(OSError):
                log.release(Errors.KAFKA_STORAGE_ERROR)
        directory.release()
        if self.on_dir_failure is not None:
            self.on_dir_failure(directory.path, lost)

    def describe(self) -> list[DirectoryDescription]:
        """What DescribeLogDirs tells of every directory and every replica in it."""
        described = []
        for directory in self.directories:
            error = Errors.NONE if directory.online else Errors.KAFKA_STORAGE_ERROR
            total, usable = directory.usable_bytes() if directory.online else (-1, -1)
            replicas = [
                ReplicaDescription(topic_partition, log.size, max(0, log.high_watermark - log.log_end_offset), False)
                for topic_partition, log in directory.logs.items()
            ]
            replicas += [
                ReplicaDescription(topic_partition, move.size, move.lag, True)
                for topic_partition, move in self.mover.moves.items()
                if move.target is directory
            ]
            described.append(DirectoryDescription(directory.path, error, total, usable, replicas))
        return described

    async def settle(self) -> None:
        """Nothing more is to be appended: refuse what waits, and let what is being written come to its end."""
        for log in list(self.logs.values()):
            if log.queue is not None:
                async with log.queue.turn(refusing=Errors.NOT_LEADER_OR_FOLLOWER):
                    pass

    def shutdown(self) -> None:
        """Bring everything to disk, write the checkpoints, mark the directories clean and let go of them.

        Blocks, and may be called from a thread when nothing uses the logs any more (`settle`). A directory in which it
        fails is not marked: its logs are recovered at the next start.
        """
        self.mover.stop()
        self.cleaner.stop()
        self.upkeep.stop()
        self.io.stop()
        for directory in self.online:
            try:
                self.io.close_all(list(directory.logs.values()))
                directory.write_checkpoints()
                directory.mark_clean()
            except OSError as error:
                directory.fail(error)
            directory.release()
