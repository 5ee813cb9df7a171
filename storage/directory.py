"""A log directory: names of what lies in it, its lock, its clean-shutdown marker.

`<topic>-<partition>` holds a partition; `<topic>-<partition>.<32 hex>-delete` one that waits for its removal, `-future`
one on its way from another log directory, `-stray` one that the controller did not know. Any other directory name
stops the broker, as with Kafka: it would otherwise be taken for data that is not there.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from pybroker.protocol.types import TopicPartition
from pybroker.storage.checkpoints import repair_hint, replace_file, sync_directory
from pybroker.storage.meta_properties import WrongDirectory

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"
# In a partition directory that a move between log directories is about to put in another's place: while it is there,
# the other one counts. Kafka passes such a file over.
MOVE_MARK = "pybroker-move-unfinished"

_MAX_NAME = 255
_PARTITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)")
_SUFFIXED = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)\.(?P<unique>[0-9a-f]{32})(?P<suffix>-delete|-future|-stray)"
)
# Directories of Kafka's that hold no partition of ours: the cache of tiered storage, the metadata of KRaft.
_SKIPPED = frozenset({"remote-log-index-cache", "__cluster_metadata-0"})


class DirectoryName(NamedTuple):
    """What a directory's name says: the partition, and the suffix ("" for a partition that is in use)."""

    topic_partition: TopicPartition
    suffix: str


def partition_directory(topic_partition: TopicPartition) -> str:
    """The name of a partition's directory."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def suffixed_directory(topic_partition: TopicPartition, suffix: str) -> str:
    """A new, unique name for a partition's directory on its way out, in or aside; a long topic is cut to fit."""
    tail = f"-{topic_partition.partition}.{os.urandom(16).hex()}{suffix}"
    return topic_partition.topic[: _MAX_NAME - len(tail)] + tail


def parse_directory(path: Path) -> DirectoryName:
    """What a directory's name says; WrongDirectory for one that is none of a broker's."""
    name = path.name
    match = _SUFFIXED.fullmatch(name)
    if match:
        return DirectoryName(TopicPartition(match["topic"], int(match["partition"])), match["suffix"])
    match = _PARTITION.fullmatch(name)
    if match is None:
        raise WrongDirectory(
            f"{path} is in a log directory, but {name!r} is not of the form topic-partition (or "
            f"topic-partition.uniqueId-delete, -future, -stray). Move it out of {path.parent}; "
            f"a log directory holds nothing but partitions. {repair_hint(path.parent)}"
        )
    return DirectoryName(TopicPartition(match["topic"], int(match["partition"])), "")


def list_partitions(directory: Path) -> list[tuple[Path, DirectoryName]]:
    """Every partition directory in a log directory, by name; WrongDirectory at one that is none."""
    return [(path, parse_directory(path)) for path in list_names(directory)]


def list_names(directory: Path) -> list[Path]:
    """Every directory in a log directory that is or ought to be a partition's, by name; OSError."""
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and entry.name not in _SKIPPED)
    return [directory / name for name in names]


class DirectoryLock:
    """The `.lock` file, exclusively locked while the broker runs; excludes a second broker of either kind.

    A POSIX record lock, as the JVM takes it (flock would not exclude it). Closing any other descriptor of the file
    would drop it, so nothing else may open the file; a process does not exclude itself.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, directory: Path) -> None:
        """Take the lock. WrongDirectory if another process has it, OSError if the directory cannot be written."""
        self.path = directory / LOCK_FILE
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise WrongDirectory(
                f"{self.path} is locked by another process: a broker is already running on {directory}. "
                f"Stop it, or set log.dirs to another directory."
            ) from None

    def release(self) -> None:
        """Let another broker have the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def has_clean_shutdown(directory: Path) -> bool:
    """Whether the last broker on this directory wrote everything out: logs need no recovery."""
    return (directory / CLEAN_SHUTDOWN_FILE).exists()


def write_clean_shutdown(directory: Path, broker_epoch: int = -1) -> None:
    """Mark the directory, as the last thing of a clean shutdown, durably; `broker_epoch` is of later Kafkas' use."""
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    replace_file(directory / CLEAN_SHUTDOWN_FILE, data.encode())


def remove_clean_shutdown(directory: Path) -> None:
    """Take the mark away, once the logs are loaded: from here on a stop is a crash until proven otherwise."""
    try:
        (directory / CLEAN_SHUTDOWN_FILE).unlink()
    except FileNotFoundError:
        return
    sync_directory(directory)
