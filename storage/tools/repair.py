"""Remedies for what keeps a broker from starting on its log directories.

`find_remedies` only looks. Applying a remedy first puts what it changes into a Backup beside the log directory (not in
it, where any directory but a partition's stops the broker).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pybroker.protocol.types import TopicPartition
from pybroker.storage import checkpoints, leader_epochs, meta_properties, partition_metadata
from pybroker.storage.checkpoints import CorruptCheckpoint
from pybroker.storage.directory import CLEAN_SHUTDOWN_FILE, has_clean_shutdown, list_names, parse_directory
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.meta_properties import WrongDirectory, parse_properties, read_meta_properties
from pybroker.storage.partition_metadata import CorruptPartitionMetadata, read_topic_id
from pybroker.storage.recovery import base_offset_of
from pybroker.storage.scanner import BrokenBatch
from pybroker.storage.segment import INDEX_SUFFIX, LOG_SUFFIX
from pybroker.storage.tools.dump_indexes import offset_entries
from pybroker.storage.tools.walker import CutOff, walk_log

# Checkpoints that a broker does without: it reads more at the next start, or learns the offset again.
_DISPENSABLE = (checkpoints.RECOVERY_POINT, checkpoints.REPLICATION_OFFSET, checkpoints.CLEANER_OFFSET)


class Backup:
    """Where files go before they are changed: `<log directory>.backup-<time>`, made when first needed."""

    def __init__(self, directory: Path, root: Path | None = None) -> None:
        self.directory = directory
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.root = root or directory.parent / f"{directory.name}.backup-{stamp}"

    def copy(self, path: Path) -> None:
        """Keep a copy of a file."""
        shutil.copy2(path, self._place(path))

    def move(self, path: Path) -> None:
        """Take a file or directory out of the log directory."""
        shutil.move(path, self._place(path))
        checkpoints.sync_directory(path.parent)

    def _place(self, path: Path) -> Path:
        place = self.root / path.relative_to(self.directory)
        while place.exists():
            place = place.with_name(f"{place.name}.1")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


class Remedy(NamedTuple):
    """What is `wrong` with a path in a log directory, and `what` can be done about it."""

    directory: Path
    path: Path
    wrong: str
    what: str
    apply: Callable[[Backup], None]


class Identity(NamedTuple):
    """Whose the directories ought to be; None where nobody says."""

    broker_id: int | None = None
    cluster_id: str | None = None


def find_remedies(directories: Sequence[Path], identity: Identity) -> Iterator[Remedy]:
    """What keeps a broker from starting on these log directories, which have to be locked. OSError."""
    seen: dict[TopicPartition, Path] = {}
    cluster_id = identity.cluster_id
    for directory in directories:
        yield from _meta_properties(directory, Identity(identity.broker_id, cluster_id))
        cluster_id = cluster_id or _known_cluster_id(directory)
        yield from _checkpoints(directory)
        for path in list_names(directory):
            yield from _partition_directory(directory, path, seen)


def _partition_directory(directory: Path, path: Path, seen: dict[TopicPartition, Path]) -> Iterator[Remedy]:
    try:
        topic_partition, suffix = parse_directory(path)
    except WrongDirectory:
        wrong = "is no partition's directory, and the broker refuses any other"
        yield Remedy(directory, path, wrong, "move it to the backup", _mover(path))
        return
    if suffix:
        return
    if topic_partition in seen:
        yield _one_of_two(seen[topic_partition], path)
    seen.setdefault(topic_partition, path)
    yield from _partition_files(directory, path)


# --- whose the directory is


def _known_cluster_id(directory: Path) -> str | None:
    try:
        found = read_meta_properties(directory)
    except WrongDirectory:
        return None
    return found.cluster_id if found else None


def _meta_properties(directory: Path, identity: Identity) -> Iterator[Remedy]:
    path = directory / meta_properties.FILE_NAME
    try:
        found = read_meta_properties(directory)
    except WrongDirectory as error:
        properties = parse_properties(path.read_bytes().decode("utf-8", "replace"))
        named = properties.get("node.id") or properties.get("broker.id") or ""
        broker_id = identity.broker_id if identity.broker_id is not None else int(named) if named.isdecimal() else None
        yield _rewrite(path, _short(path, error), broker_id, identity.cluster_id or properties.get("cluster.id"))
        return
    if found is None:
        return
    wrong = []
    if identity.broker_id is not None and found.broker_id not in (None, identity.broker_id):
        wrong.append(f"says broker.id={found.broker_id}, not {identity.broker_id}")
    if identity.cluster_id is not None and found.cluster_id not in (None, identity.cluster_id):
        wrong.append(f"says cluster.id={found.cluster_id}, not {identity.cluster_id}")
    if wrong:
        broker_id = found.broker_id if identity.broker_id is None else identity.broker_id
        yield _rewrite(path, " and ".join(wrong), broker_id, identity.cluster_id or found.cluster_id)


def _rewrite(path: Path, wrong: str, broker_id: int | None, cluster_id: str | None) -> Remedy:
    if broker_id is None or cluster_id is None:
        what = "move it to the backup; it is written anew at the next start"
        return Remedy(path.parent, path, wrong, what, _mover(path))

    def apply(backup: Backup) -> None:
        backup.copy(path)
        meta_properties.write_meta_properties(path.parent, broker_id, cluster_id)

    what = f"write it with version=0, broker.id={broker_id}, cluster.id={cluster_id}"
    return Remedy(path.parent, path, wrong, what, apply)


# --- checkpoints


def _checkpoints(directory: Path) -> Iterator[Remedy]:
    for name in _DISPENSABLE:
        path = directory / name
        try:
            checkpoints.read_offsets(path)
        except CorruptCheckpoint as error:
            what = "move it to the backup; its content comes back with time"
            yield Remedy(directory, path, _short(path, error), what, _mover(path))
    path = directory / checkpoints.LOG_START
    try:
        checkpoints.read_offsets(path)
    except CorruptCheckpoint as error:
        yield _salvage_log_starts(directory, path, _short(path, error))


def _mover(path: Path) -> Callable[[Backup], None]:
    return lambda backup: backup.move(path)


def _salvage_log_starts(directory: Path, path: Path, wrong: str) -> Remedy:
    """Without its entry a partition would show records again that DeleteRecords took away."""
    lines = checkpoints.readable_lines(path, 3)
    offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in lines}

    def apply(backup: Backup) -> None:
        backup.copy(path)
        checkpoints.write_offsets(path, offsets)

    what = (
        f"keep the {len(offsets)} entries that can be read; in other partitions, records below the log start offset "
        f"show again as far as their segments are there"
    )
    return Remedy(directory, path, wrong, what, apply)


# --- partitions


def _partition_files(directory: Path, partition: Path) -> Iterator[Remedy]:
    path = partition / partition_metadata.FILE_NAME
    try:
        read_topic_id(partition)
    except CorruptPartitionMetadata as error:
        what = "move it to the backup; the controller tells the topic's id again"
        yield Remedy(directory, path, _short(path, error), what, _mover(path))
    path = partition / leader_epochs.FILE_NAME
    try:
        LeaderEpochCache.load(partition)
    except CorruptCheckpoint as error:
        yield _rebuild_epochs(directory, partition, path, _short(path, error))
    if has_clean_shutdown(directory):
        torn = _torn_end(partition)
        if torn is not None:
            mark = directory / CLEAN_SHUTDOWN_FILE
            yield Remedy(
                directory,
                mark,
                f"is there, though {torn}",
                "move the mark to the backup: the next start then recovers the logs, cutting off what is no batch",
                lambda backup: backup.move(mark) if mark.exists() else None,
            )


def _torn_end(partition: Path) -> str | None:
    """What lies behind the last batch, if the broker refuses it: it reads the end of the last log only."""
    logs = _logs(partition)
    if not logs:
        return None
    last = logs[-1]
    try:
        *_, (_, position) = [(0, 0), *offset_entries(last.with_suffix(INDEX_SUFFIX))]
    except FileNotFoundError:
        return None  # the segment is scanned then
    descriptor = os.open(last, os.O_RDONLY)
    try:
        for _ in walk_log(descriptor, os.fstat(descriptor).st_size, position):
            pass
    except CutOff:
        return None  # which is cut off without a word
    except BrokenBatch as broken:
        return f"{last} holds something else than batches: {broken}"
    finally:
        os.close(descriptor)
    return None


def _rebuild_epochs(directory: Path, partition: Path, path: Path, wrong: str) -> Remedy:
    def apply(backup: Backup) -> None:
        backup.move(path)
        cache = LeaderEpochCache(partition)
        for log in _logs(partition):
            for epoch, offset in _epochs_in(log):
                if epoch > cache.latest_epoch:
                    cache.assign(epoch, offset)
        cache.flush()

    return Remedy(directory, path, wrong, "write it anew from the batches of the log", apply)


def _epochs_in(log: Path) -> Iterator[tuple[int, int]]:
    """(leader epoch, base offset) of every batch that can be read."""
    descriptor = os.open(log, os.O_RDONLY)
    try:
        for _, header, _ in walk_log(descriptor, os.fstat(descriptor).st_size):
            yield header.leader_epoch, header.base_offset
    except BrokenBatch:
        return  # recovery cuts the log off there
    finally:
        os.close(descriptor)


def _one_of_two(first: Path, second: Path) -> Remedy:
    """The replica that holds more stays: the other is what a move between directories left."""
    older, newer = sorted((first, second), key=_extent)
    wrong = f"holds the same partition as {newer}"
    return Remedy(older.parent, older, wrong, "move it to the backup: its log ends earlier", _mover(older))


def _extent(partition: Path) -> tuple[int, float]:
    """(log end offset, time of the last write)."""
    logs = _logs(partition)
    if not logs:
        return -1, 0.0
    end = base_offset_of(logs[-1].name) or 0
    descriptor = os.open(logs[-1], os.O_RDONLY)
    try:
        for _, header, _ in walk_log(descriptor, os.fstat(descriptor).st_size):
            end = header.last_offset + 1
    except BrokenBatch:
        pass  # it ends there
    finally:
        os.close(descriptor)
    return end, logs[-1].stat().st_mtime


def _logs(partition: Path) -> list[Path]:
    return sorted(partition.glob(f"*{LOG_SUFFIX}"))


def _short(path: Path, error: Exception) -> str:
    """What a message of the broker's says is wrong with a file, without the remedy."""
    return str(error).removeprefix(f"{path} ").partition(". ")[0]
