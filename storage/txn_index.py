"""The `.txnindex` file of a segment: the aborted transactions whose ABORT marker lies in it.

Entries of 34 bytes (Kafka's AbortedTxn, version 0, big-endian): int16 version, int64 producer id, int64 first offset,
int64 last offset (of the marker), int64 last stable offset when it was written. The file exists only where there is
an entry. read_committed readers learn from it which producers' records to drop.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """One aborted transaction: its records lie in [first_offset, last_offset], last_offset being its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class CorruptTransactionIndex(ValueError):
    """The file holds something that is no entry; recovery writes it anew."""


class TransactionIndex:
    """The aborted transactions of one segment, in the order of their markers; read from disk on first use."""

    __slots__ = ("_entries", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[AbortedTransaction] | None = None

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All entries, ascending by last_offset; CorruptTransactionIndex when the file is none."""
        if self._entries is None:
            self._entries = list(_read(self.path))
        return self._entries

    def append(self, entry: AbortedTransaction) -> None:
        """Add the transaction whose marker was just appended; its last offset is above every earlier one's."""
        entries = self.entries
        if entries and entries[-1].last_offset >= entry.last_offset:
            raise ValueError(f"{self.path}: last offset {entry.last_offset} is not above {entries[-1].last_offset}")
        with open(self.path, "ab", buffering=0) as file:
            file.write(_ENTRY.pack(VERSION, *entry))
        entries.append(entry)

    def collect(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions with records in [start, end), and whether later segments need not be asked.

        They need not once an entry says that everything below `end` was decided when it was written.
        """
        found = []
        for entry in self.entries:
            if entry.last_offset >= start and entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Forget the markers at or above `offset`."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) != len(self.entries):
            with open(self.path, "r+b", buffering=0) as file:
                file.truncate(len(kept) * ENTRY_SIZE)
            self._entries = kept

    def reset(self) -> None:
        """Forget everything: the segment is about to be scanned, which brings the entries back."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        self._entries = []

    def renamed(self, path: Path) -> None:
        """The file has moved, with its segment."""
        self.path = path

    def flush(self) -> None:
        """Make the entries durable; blocks, for a thread."""
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            os.fsync(file.fileno())

    def check(self) -> None:
        """CorruptTransactionIndex unless every entry is whole and the markers ascend."""
        last = -1
        for entry in self.entries:
            if entry.last_offset <= last:
                raise CorruptTransactionIndex(f"{self.path}: entries do not ascend at offset {entry.last_offset}")
            last = entry.last_offset


def _read(path: Path) -> Iterator[AbortedTransaction]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    if len(data) % ENTRY_SIZE:
        raise CorruptTransactionIndex(f"{path}: {len(data)} bytes are no multiple of {ENTRY_SIZE}")
    for version, *fields in _ENTRY.iter_unpack(data):
        if version != VERSION:
            raise CorruptTransactionIndex(f"{path}: unknown entry version {version}")
        yield AbortedTransaction(*fields)
