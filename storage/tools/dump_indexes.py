"""The entries of `.index`, `.timeindex` and `.txnindex`, each compared with the log beside it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pybroker.protocol.records.header import BatchHeader
from pybroker.storage.recovery import base_offset_of
from pybroker.storage.scanner import BrokenBatch
from pybroker.storage.segment import LOG_SUFFIX
from pybroker.storage.tools.items import Item, Options, note, problem
from pybroker.storage.tools.walker import walk_log
from pybroker.storage.txn_index import ENTRY_SIZE as TXN_ENTRY_SIZE
from pybroker.storage.txn_index import VERSION as TXN_VERSION

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")
_ENTRIES_AT_ONCE = 4096


def offset_entries(path: Path) -> Iterator[tuple[int, int]]:
    """(offset - base, position) of every entry up to the zeros that the active segment's file ends in. OSError."""
    for number, (relative, position) in enumerate(_entries(path, _OFFSET_ENTRY)):
        if not relative and (number or not position):
            return
        yield relative, position


def time_entries(path: Path) -> Iterator[tuple[int, int]]:
    """(timestamp, offset - base) of every entry up to the zeros that the active segment's file ends in. OSError."""
    for number, (timestamp, relative) in enumerate(_entries(path, _TIME_ENTRY)):
        if not timestamp and (number or not relative):
            return
        yield timestamp, relative


def _entries(path: Path, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
    with open(path, "rb") as file:
        while piece := file.read(layout.size * _ENTRIES_AT_ONCE):
            yield from layout.iter_unpack(piece[: len(piece) // layout.size * layout.size])


def dump_offset_index(path: Path, options: Options) -> Iterator[Item]:
    """Entries, and what is wrong with them: not ascending, or the log has another batch there."""
    yield from _size_of(path, _OFFSET_ENTRY.size)
    base = base_offset_of(path.name) or 0
    if _is_unused(path):
        yield note(f"{path} is empty.")
        return
    with _log_of(path) as log:
        if log is None:
            yield note("There is no log beside it to compare it with.")
        last = base - 1
        for relative, position in offset_entries(path):
            offset = base + relative
            if not options.only_problems:
                yield Item("entry", {"offset": offset, "position": position})
            if offset <= last:
                yield problem(f"offset {offset} follows offset {last}")
            last = offset
            if log is not None:
                found = log.batch_at(position)
                if found is None:
                    yield problem(f"Index offset: {offset}, but the log has no batch at position {position}")
                elif found.last_offset > offset:
                    yield problem(f"Index offset: {offset}, log offset: {found.last_offset}")


def dump_time_index(path: Path, options: Options) -> Iterator[Item]:
    """Entries, and what is wrong with them: not ascending, or the log's batch has another timestamp."""
    yield from _size_of(path, _TIME_ENTRY.size)
    base = base_offset_of(path.name) or 0
    if _is_unused(path):
        yield note(f"{path} is empty.")
        return
    with _log_of(path) as log:
        if log is None:
            yield note("There is no log beside it to compare it with.")
        last = -1
        for timestamp, relative in time_entries(path):
            offset = base + relative
            if not options.only_problems:
                yield Item("entry", {"timestamp": timestamp, "offset": offset})
            if timestamp <= last:
                yield problem(f"Index timestamp: {timestamp}, previous index timestamp: {last}")
            last = timestamp
            if log is not None:
                found = log.timestamps_at(offset)
                if found is None:
                    yield problem(f"Index offset: {offset}, but the log ends before it")
                elif not found[0] <= timestamp <= found[1]:
                    yield problem(f"Index offset: {offset}, index timestamp: {timestamp}, log timestamp: {max(found)}")


def dump_txn_index(path: Path, options: Options) -> Iterator[Item]:
    """Entries, and whether they ascend."""
    yield from _size_of(path, TXN_ENTRY_SIZE)
    last = -1
    for version, producer_id, first_offset, last_offset, last_stable_offset in _entries(path, _TXN_ENTRY):
        if not options.only_problems:
            yield Item(
                "entry",
                {
                    "version": version,
                    "producerId": producer_id,
                    "firstOffset": first_offset,
                    "lastOffset": last_offset,
                    "lastStableOffset": last_stable_offset,
                },
            )
        if version != TXN_VERSION:
            yield problem(f"unknown entry version {version}")
            return
        if last_offset <= last:
            yield problem(f"last offset {last_offset} follows {last}")
        last = last_offset


def _size_of(path: Path, entry_size: int) -> Iterator[Item]:
    size = path.stat().st_size
    if size % entry_size:
        yield problem(f"{size} bytes are no multiple of {entry_size}", size // entry_size * entry_size)


def _is_unused(path: Path) -> bool:
    """Whether there is no entry: the file is empty, or begins with zeros."""
    with open(path, "rb") as file:
        return not any(file.read(12))


class LogBeside:
    """The log of an index, for single looks at it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._walk = walk_log(descriptor, self._size)
        self._last: BatchHeader | None = None
        self._largest = -1  # timestamp of the batches before the last

    def batch_at(self, position: int) -> BatchHeader | None:
        """The batch that begins at a position, if one does.

        An entry leads to it with its own last offset or, when several batches were written at once, with theirs.
        """
        if not 0 <= position < self._size:
            return None
        try:
            return next(walk_log(self._descriptor, self._size, position)).header
        except BrokenBatch:
            return None

    def timestamps_at(self, offset: int) -> tuple[int, int] | None:
        """(largest timestamp of the batches that end at or before an offset, the same with the batch that holds it).

        None behind the log's end. Asked in ascending order, the file is walked once.
        """
        try:
            while self._last is None or self._last.last_offset < offset:
                if self._last is not None:
                    self._largest = max(self._largest, self._last.max_timestamp)
                self._last = next(self._walk).header
        except (BrokenBatch, StopIteration):
            return None
        through = max(self._largest, self._last.max_timestamp)
        return (through if self._last.last_offset == offset else self._largest), through


@contextmanager
def _log_of(path: Path) -> Iterator[LogBeside | None]:
    """The log of an index file, None where it is not there."""
    stem, _, rest = path.name.partition(".")
    suffix = rest.partition(".")[2]
    log = path.with_name(f"{stem}{LOG_SUFFIX}{'.' if suffix else ''}{suffix}")
    try:
        descriptor = os.open(log, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        yield LogBeside(descriptor)
    finally:
        os.close(descriptor)
