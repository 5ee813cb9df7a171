"""One log directory of the broker (an entry of log.dirs): its lock, its identity, its checkpoints, whether it works.

A directory on which a file operation failed is offline: its logs answer KAFKA_STORAGE_ERROR and the others go on
(KIP-112). It stays so until the broker is started again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from pybroker.protocol.types import TopicPartition
from pybroker.storage import checkpoints
from pybroker.storage.directory import (
    DirectoryLock,
    has_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from pybroker.storage.meta_properties import MetaProperties, read_meta_properties

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]


class LogDirectory:
    """A log directory; `failure` says why it is offline, None while it works."""

    __slots__ = ("_lock", "_written", "failure", "log_starts", "path", "properties", "recovery_points", "replication")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None
        self.properties: MetaProperties | None = None
        # What the checkpoint files said when the directory was loaded.
        self.recovery_points: Offsets = {}
        self.log_starts: Offsets = {}
        self.replication: Offsets = {}
        self._lock: DirectoryLock | None = None
        self._written: dict[str, Offsets] = {}

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
        self.recovery_points = checkpoints.read_offsets(self.path / checkpoints.RECOVERY_POINT)
        self.log_starts = checkpoints.read_offsets(self.path / checkpoints.LOG_START)
        self.replication = checkpoints.read_offsets(self.path / checkpoints.REPLICATION_OFFSET)

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace one checkpoint, unless it says this already; blocks, for a thread. OSError."""
        if self._written.get(name) != offsets:
            checkpoints.write_offsets(self.path / name, offsets)
            self._written[name] = dict(offsets)

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
