"""Finding, recovering and opening all partitions when the broker starts.

All directories are looked at before anything is changed, so that a foreign directory or a partition that lies in two of
them is refused while everything is as it was. A disk error or an unreadable checkpoint takes one directory offline.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pybroker.protocol.types import TopicPartition
from pybroker.storage import checkpoints
from pybroker.storage.checkpoints import CorruptCheckpoint
from pybroker.storage.directory import DELETE_SUFFIX, FUTURE_SUFFIX, MOVE_MARK, list_partitions, suffixed_directory
from pybroker.storage.loader import ALL_FLUSHED, Loading
from pybroker.storage.log_directory import LogDirectory
from pybroker.storage.meta_properties import WrongDirectory
from pybroker.storage.recovery_pool import recover_all

if TYPE_CHECKING:
    from pybroker.config import LogConfig

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0


class Found(NamedTuple):
    """A partition directory that is in use."""

    home: LogDirectory
    topic_partition: TopicPartition
    path: Path


class Startup:
    """One start. `offline` are partitions of directories that failed, `doomed` directories that wait for removal,
    `futures` those of moves that were not finished."""

    def __init__(
        self, directories: list[LogDirectory], config_of: Callable[[str], LogConfig], expiration_ms: int, now_ms: int
    ) -> None:
        """`config_of` gives a topic's settings, `expiration_ms` is producer.id.expiration.ms."""
        self.offline: dict[TopicPartition, LogDirectory] = {}
        self.doomed: list[Path] = []
        self.futures: list[tuple[TopicPartition, Path]] = []
        self._directories = directories
        self._config_of = config_of
        self._expiration_ms = expiration_ms
        self._now_ms = now_ms
        self._found: list[Found] = []
        self._abandoned: list[Found] = []
        self._clean: list[LogDirectory] = []
        self._recovered: dict[Path, Loading] = {}

    def run(self, workers_per_directory: int, open_log: Callable[[Found, Loading], None]) -> None:
        """Hand every partition to `open_log`, once it is in order. WrongDirectory for what stops the broker."""
        self._find()
        self._put_aside()
        try:
            self._read_directories()
            self._recover(workers_per_directory * len(self._directories))
            self._open(open_log)
        except WrongDirectory:
            for directory in self._clean:  # nothing was written to its logs
                directory.mark_clean()
            raise

    def _find(self) -> None:
        seen: dict[TopicPartition, Found] = {}
        for directory in self._directories:
            try:
                listed = list_partitions(directory.path)
            except OSError as error:
                directory.fail(error)
                continue
            for path, (topic_partition, suffix) in listed:
                if suffix == DELETE_SUFFIX:
                    self.doomed.append(path)
                elif suffix == FUTURE_SUFFIX:
                    self.futures.append((topic_partition, path))
                elif suffix:
                    logger.warning("%s is left as it is: %s replicas are not served", path, suffix)
                else:
                    found = Found(directory, topic_partition, path)
                    other = seen.get(topic_partition)
                    seen[topic_partition] = found if other is None else self._one_of(other, found)
        self._found = list(seen.values())

    def _one_of(self, first: Found, second: Found) -> Found:
        """Of two replicas of a partition the one that counts. WrongDirectory where that can't be said."""
        for found, other in ((first, second), (second, first)):
            if (found.path / MOVE_MARK).exists() and not (other.path / MOVE_MARK).exists():
                self._abandoned.append(found)
                return other
        raise WrongDirectory(
            f"{second.path} and {first.path} hold the same partition. "
            f"Move the older of them out of the log directories. The command `pybroker log repair "
            f"{first.path.parent} {second.path.parent}` offers this, and keeps a backup."
        )

    def _put_aside(self) -> None:
        """The copies of moves that a crash has interrupted in their last step; the replicas are where they were."""
        for home, topic_partition, path in self._abandoned:
            target = path.with_name(suffixed_directory(topic_partition, DELETE_SUFFIX))
            try:
                path.rename(target)
            except OSError as error:
                self._fail(home, error)
            else:
                self.doomed.append(target)

    def _read_directories(self) -> None:
        """Checkpoints and clean-shutdown marks, which are taken away: the next thing to happen may be a crash."""
        for directory in self._directories:
            if directory.online:
                try:
                    directory.read_checkpoints()
                    if directory.was_stopped_cleanly():
                        self._clean.append(directory)
                except (OSError, CorruptCheckpoint) as error:
                    self._fail(directory, error)

    def _recover(self, workers: int) -> None:
        """Recover the partitions of directories that were not left cleanly."""
        dirty = {found.path: found for found in self._found if found.home.online and found.home not in self._clean}
        if not dirty:
            return
        logger.info("Recovering %d partitions, as their log directories were not left cleanly", len(dirty))
        for result in recover_all([self._loading(found) for found in dirty.values()], workers):
            path = result.loading.directory
            if isinstance(result.error, WrongDirectory):
                raise result.error
            if result.error is not None:
                self._fail(dirty[path].home, result.error)
            else:
                self._recovered[path] = result.loading._replace(clean=True, recovery_point=result.recovery_point)

    def _open(self, open_log: Callable[[Found, Loading], None]) -> None:
        progress = time.monotonic() + _PROGRESS_SECONDS
        for number, found in enumerate(self._found):
            if time.monotonic() > progress:
                progress = time.monotonic() + _PROGRESS_SECONDS
                logger.info("Loaded %d of %d partitions", number, len(self._found))
            if found.home.online:
                try:
                    open_log(found, self._recovered.get(found.path) or self._loading(found))
                except (OSError, CorruptCheckpoint) as error:
                    self._fail(found.home, error)

    def _loading(self, found: Found) -> Loading:
        home, topic_partition = found.home, found.topic_partition
        clean = home in self._clean
        return Loading(
            found.path,
            self._config_of(topic_partition.topic),
            clean,
            ALL_FLUSHED if clean else home.checkpointed(checkpoints.RECOVERY_POINT, topic_partition),
            home.checkpointed(checkpoints.LOG_START, topic_partition),
            self._expiration_ms,
            self._now_ms,
        )

    def _fail(self, directory: LogDirectory, error: Exception) -> None:
        directory.fail(error)
        self.offline.update((found.topic_partition, directory) for found in self._found if found.home is directory)
