"""One log directory of the broker (an entry of log.dirs): its lock, its identity, its checkpoints, whether it works.

A directory on which a file operation failed is offline: its logs answer KAFKA_STORAGE_ERROR and the others go on
(KIP-112). It stays so until the broker is started again.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.protocol.types import TopicPartition
from pybroker.storage import checkpoints
from pybroker.storage.append_queue import LogWriter
from pybroker.storage.directory import (
    DirectoryLock,
    has_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from pybroker.storage.meta_properties import MetaProperties, read_meta_properties

if TYPE_CHECKING:
    from pybroker.storage.log import Log

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]
CHECKPOINTS = (
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.REPLICATION_OFFSET,
    checkpoints.CLEANER_OFFSET,
)


class LogDirectory:
    """A log directory; `failure` says why it is offline, None while it works."""

    __slots__ = (
        "_lock", "_wanted", "_writing", "_written", "arriving", "failure", "logs", "path", "properties", "writer",
    )  # fmt: skip

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None
        self.properties: MetaProperties | None = None
        self.logs: dict[TopicPartition, Log] = {}
        self.writer = LogWriter(self.logs)
        self.arriving: dict[TopicPartition, Log] = {}  # on their way from other directories
        self._lock: DirectoryLock | None = None
        self._written: dict[str, Offsets] = {}  # what each checkpoint file says
        self._wanted: dict[str, Offsets] = {}  # what it is to say, handed to a thread
        self._writing = threading.Lock()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def online(self) -> bool:
        return self.failure is None

    def open(self) -> None:
        """Make the directory if need be, lock it and read whose it is.

        Raises WrongDirectory if it is in use or of another kind. A disk error takes it offline.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(self.path)
            self.properties = read_meta_properties(self.path)
        except OSError as error:
            self.fail(error)

    def fail(self, error: BaseException | str) -> None:
        """Take the directory offline, once."""
        if self.failure is None:
            self.failure = str(error)
            logger.error("Log directory %s is offline from now on: %s", self.path, error)

    def was_stopped_cleanly(self) -> bool:
        """Whether its logs need no recovery. The mark is taken away: loading may be the next thing that crashes."""
        clean = has_clean_shutdown(self.path)
        remove_clean_shutdown(self.path)
        return clean

    def read_checkpoints(self) -> None:
        """Read the offset checkpoints; CorruptCheckpoint, OSError."""
        for name in CHECKPOINTS:
            self._written[name] = checkpoints.read_offsets(self.path / name)

    def checkpointed(self, name: str, topic_partition: TopicPartition) -> int:
        """What a checkpoint says of a partition, 0 if nothing."""
        return self._written.get(name, {}).get(topic_partition, 0)

    def offsets(self, name: str) -> Offsets:
        """What a checkpoint would have to say now; log starts only where the first segment does not tell them,
        cleaned parts only where there are any."""
        if name == checkpoints.RECOVERY_POINT:
            return {partition: log.recovery_point for partition, log in self.logs.items()}
        logs = (self.arriving | self.logs).items() if self.arriving else self.logs.items()
        if name == checkpoints.REPLICATION_OFFSET:
            return {partition: log.high_watermark for partition, log in logs}
        if name == checkpoints.CLEANER_OFFSET:
            return {partition: log.cleaned_to for partition, log in logs if log.cleaned_to > 0}
        return {partition: log.log_start_offset for partition, log in logs if log.log_start_offset > log.bases[0]}

    def want_checkpoint(self, name: str) -> bool:
        """Note what a checkpoint has to say now; whether that is news, for `write_wanted` in a thread."""
        offsets = self.offsets(name)
        news = self._wanted.get(name, self._written.get(name)) != offsets
        if news:
            self._wanted[name] = offsets
        return news

    def write_wanted(self, name: str) -> None:
        """Replace a checkpoint by what was last wanted of it; blocks. OSError when the disk fails."""
        with self._writing:
            offsets = self._wanted.pop(name, None)
            if offsets is not None:
                checkpoints.write_offsets(self.path / name, offsets)
                self._written[name] = offsets

    def write_checkpoints(self) -> None:
        """Bring all checkpoints up to date; blocks. OSError when the disk fails."""
        for name in CHECKPOINTS:
            self.want_checkpoint(name)
            self.write_wanted(name)

    def make_way(self, topic_partition: TopicPartition) -> None:
        """A new log is about to be made: after a crash it must not start from the offsets of a deleted one of its name.

        Rarely has anything to write: the checkpoints are written anew soon after a deletion.
        """
        for name in CHECKPOINTS:
            if topic_partition in self._written.get(name, ()):
                self.want_checkpoint(name)
                self.write_wanted(name)

    def mark_clean(self) -> None:
        """The last thing of a clean shutdown, when all logs are on disk."""
        write_clean_shutdown(self.path)

    def usable_bytes(self) -> tuple[int, int]:
        """(size of the volume, bytes free for the broker); -1, -1 where that cannot be said."""
        try:
            volume = os.statvfs(self.path)
        except OSError:
            return -1, -1
        return volume.f_frsize * volume.f_blocks, volume.f_frsize * volume.f_bavail

    def release(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
