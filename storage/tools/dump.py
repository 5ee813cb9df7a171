"""What is in a file of a log directory, item by item, in the terms of Kafka's DumpLogSegments.

A broken file gives what can be read of it, and an item that says where it breaks. Memory is bounded: files are read in
pieces, batches are looked into only up to a size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pybroker.storage import checkpoints, leader_epochs, meta_properties, partition_metadata
from pybroker.storage.checkpoints import CorruptCheckpoint
from pybroker.storage.directory import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from pybroker.storage.partition_metadata import CorruptPartitionMetadata
from pybroker.storage.producer_snapshot import CorruptSnapshot, SnapshotEntry, decode_snapshot, read_entries
from pybroker.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from pybroker.storage.tools.dump_indexes import dump_offset_index, dump_time_index, dump_txn_index
from pybroker.storage.tools.dump_log import dump_log
from pybroker.storage.tools.items import Item, OptionalNumber, Options, note, problem

MOST_TEXT = 64 << 20  # a text file above this is none of a broker's


class UnknownFile(ValueError):
    """The file's name is none of those that a broker gives."""


def dump(path: Path, options: Options) -> Iterator[Item]:
    """Everything in a file, by its name, with which suffix so ever. UnknownFile, OSError."""
    return _reader(path)(path, options)


def _reader(path: Path) -> Callable[[Path, Options], Iterator[Item]]:
    name = path.name
    found = _BY_NAME.get(name.removesuffix(".tmp"))
    if found is not None:
        return found
    match = re.fullmatch(r"[0-9]+(\.[a-z]+)(?:\.(?:deleted|cleaned|swap))?", name)
    by_suffix = _BY_SUFFIX.get(match[1]) if match else None
    if by_suffix is None:
        raise UnknownFile(f"{path}: a log directory has no files of this name")
    return by_suffix


# --- small files


def _snapshot(path: Path, options: Options) -> Iterator[Item]:
    data = path.read_bytes()
    try:
        entries = list(decode_snapshot(data))
    except CorruptSnapshot as error:
        yield problem(str(error))
        entries = read_entries(data)
    for entry in entries:
        yield Item("entry", _producer(entry))


def _producer(entry: SnapshotEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": OptionalNumber(None if entry.txn_first_offset < 0 else entry.txn_first_offset),
        "lastTimestamp": entry.timestamp,
    }
    if entry.last_offset >= 0:
        first = entry.last_sequence if entry.last_sequence < 0 else (entry.last_sequence - entry.offset_delta) % 2**31
        fields |= {
            "firstSequence": first,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": entry.timestamp,
        }
    return fields


def _offsets(path: Path, options: Options) -> Iterator[Item]:
    return _checkpoint(path, ("topic", "partition", "offset"))


def _epochs(path: Path, options: Options) -> Iterator[Item]:
    return _checkpoint(path, ("epoch", "startOffset"))


def _checkpoint(path: Path, names: tuple[str, ...]) -> Iterator[Item]:
    if path.stat().st_size > MOST_TEXT:
        yield problem(f"{path.stat().st_size} bytes are too many for a checkpoint")
        return
    try:
        checkpoints.read_lines(path, len(names))
    except CorruptCheckpoint as error:
        yield problem(str(error))
    for fields in checkpoints.readable_lines(path, len(names)):
        numbers = [value if name == "topic" else int(value) for name, value in zip(names, fields, strict=True)]
        yield Item("entry", dict(zip(names, numbers, strict=True)))


def _partition_metadata(path: Path, options: Options) -> Iterator[Item]:
    try:
        partition_metadata.read_topic_id(path.parent)
    except CorruptPartitionMetadata as error:
        yield problem(str(error))
    for line in _text(path).splitlines():
        name, _, value = line.partition(": ")
        yield Item("entry", {name: value})


def _meta_properties(path: Path, options: Options) -> Iterator[Item]:
    try:
        meta_properties.read_meta_properties(path.parent)
    except meta_properties.WrongDirectory as error:
        yield problem(str(error))
    for name, value in meta_properties.parse_properties(_text(path)).items():
        yield Item("entry", {name: value})


def _clean_shutdown(path: Path, options: Options) -> Iterator[Item]:
    yield note(_text(path) or "empty")


def _lock(path: Path, options: Options) -> Iterator[Item]:
    yield note("a lock file has no content")


def _text(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(MOST_TEXT).decode("utf-8", "replace")


_BY_SUFFIX: dict[str, Callable[[Path, Options], Iterator[Item]]] = {
    LOG_SUFFIX: dump_log,
    INDEX_SUFFIX: dump_offset_index,
    TIME_INDEX_SUFFIX: dump_time_index,
    TXN_INDEX_SUFFIX: dump_txn_index,
    ".snapshot": _snapshot,
}
_BY_NAME: dict[str, Callable[[Path, Options], Iterator[Item]]] = {
    checkpoints.RECOVERY_POINT: _offsets,
    checkpoints.LOG_START: _offsets,
    checkpoints.REPLICATION_OFFSET: _offsets,
    checkpoints.CLEANER_OFFSET: _offsets,
    leader_epochs.FILE_NAME: _epochs,
    partition_metadata.FILE_NAME: _partition_metadata,
    meta_properties.FILE_NAME: _meta_properties,
    CLEAN_SHUTDOWN_FILE: _clean_shutdown,
    LOCK_FILE: _lock,
}


def files_of(path: Path) -> list[Path]:
    """The path, or where it is a directory everything in it that can be dumped, by name."""
    if not path.is_dir():
        return [path]
    found = []
    for name in sorted(os.listdir(path)):
        try:
            _reader(path / name)
        except UnknownFile:
            continue
        found.append(path / name)
    return found
