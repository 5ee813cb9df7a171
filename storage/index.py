"""The `.index` and `.timeindex` files of a segment (Kafka's OffsetIndex and TimeIndex).

`.index`: entries of 8 bytes, int32 offset - base, int32 file position. `.timeindex`: entries of 12 bytes, int64
timestamp (ms), int32 offset - base. Both ascend. While its segment is the active one a file has its full size
(segment.index.bytes rounded down to whole entries), zero-filled and sparse, and is mapped into memory; `trim` cuts it
to its entries. Files are mapped on first use only.

A store into a mapped hole of a sparse file kills the process when the disk is full, so `reserve` first writes zeros
over the page that an entry goes to, and gets an ordinary OSError then. Old maps are dropped, never closed or cut below
their entries: a thread may be searching them.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path
from typing import ClassVar

_PAGE = 4096
_SMALL = 4096  # bytes up to which a finished index is read instead of mapped: a map holds a descriptor before 3.13
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_OFFSET_AT = struct.Struct(">i")
_TIMESTAMP_AT = struct.Struct(">q")


class CorruptIndex(ValueError):
    """An index file that cannot be one of its segment: it has to be rebuilt from the log."""


class Index:
    """What both kinds share: the file, its map, the number of entries."""

    __slots__ = ("_map", "_reserved", "base_offset", "entries", "max_entries", "path")
    entry_size: ClassVar[int]

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        """The index file at `path`, which may not exist yet; OSError if it cannot be looked at."""
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.entry_size
        self._map: mmap.mmap | bytes | None = None
        self._reserved = 0  # bytes of the file that have disk space under them; 0: not mapped for writing
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = 0
        self.entries = size // self.entry_size

    def create(self) -> None:
        """Make the file, at its full size, all zeros."""
        with open(self.path, "wb", buffering=0) as file:
            file.truncate(self.max_entries * self.entry_size)
        self.entries = 0

    def reserve(self, count: int = 1) -> None:
        """Make room for `count` entries, as far as the file's size allows, so that appending them cannot fail.

        OSError when the disk is full.
        """
        at = self.entries * self.entry_size
        wanted = at + max(1, min(count, self.max_entries - self.entries)) * self.entry_size
        if wanted <= self._reserved:
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not self._reserved:
                capacity = max(self.max_entries * self.entry_size, wanted)
                os.ftruncate(fd, capacity)
                self._map = _map(fd, capacity, mmap.ACCESS_WRITE)
            else:
                capacity = len(self._data())
            end = min(capacity, (wanted + _PAGE - 1) // _PAGE * _PAGE)
            os.pwrite(fd, bytes(end - at), at)
            self._reserved = end
        finally:
            os.close(fd)

    def reset(self) -> None:
        """Forget all entries, for a rebuild."""
        self.entries = 0

    def trim(self) -> None:
        """Cut the file to its entries: the segment is no longer the active one, or is being closed."""
        self._map = None
        self._reserved = 0
        with open(self.path, "ab", buffering=0) as file:
            file.truncate(self.entries * self.entry_size)

    def flush(self) -> None:
        """Make the entries durable; blocks, for a thread."""
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Let go of the map."""
        self._map = None
        self._reserved = 0

    def content(self) -> bytes:
        """The entries, as they stand in the file."""
        return bytes(self._data()[: self.entries * self.entry_size])

    def check(self) -> None:
        """CorruptIndex unless the file could be this segment's index. Reads the last entry, no more."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            raise CorruptIndex(f"{self.path} is missing") from None
        if size % self.entry_size:
            raise CorruptIndex(f"{self.path}: {size} bytes are no multiple of {self.entry_size}")
        if self.entries and self.offset_at(self.entries - 1) < self.base_offset:
            raise CorruptIndex(f"{self.path}: the last entry lies below the base offset {self.base_offset}")

    def offset_at(self, number: int) -> int:
        """The offset of entry `number`."""
        raise NotImplementedError

    def _data(self) -> mmap.mmap | bytes:
        """The file's content, at least up to the last entry."""
        if self._map is None:
            size = self.entries * self.entry_size
            if not size:
                return b""
            with open(self.path, "rb", buffering=0) as file:
                self._map = file.read(size) if size <= _SMALL else _map(file.fileno(), 0, mmap.ACCESS_READ)
        return self._map

    def _writable(self) -> mmap.mmap:
        """The map after `reserve`."""
        assert isinstance(self._map, mmap.mmap)
        return self._map

    def _truncate_to(self, offset: int) -> None:
        """Keep the entries with an offset below `offset`. The file keeps its size."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if self.offset_at(middle) < offset:
                low = middle + 1
            else:
                high = middle
        self.entries = low


def _map(fd: int, size: int, access: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, access=access, trackfd=False)
    return mmap.mmap(fd, size, access=access)


class OffsetIndex(Index):
    """Offset → position of the batch that ends with it."""

    __slots__ = ()
    entry_size = _OFFSET_ENTRY.size

    @property
    def is_full(self) -> bool:
        """No entry fits any more: the segment has to be rolled."""
        return self.entries >= self.max_entries

    def append(self, offset: int, position: int) -> None:
        """Add an entry, after `reserve`."""
        _OFFSET_ENTRY.pack_into(self._writable(), self.entries * 8, offset - self.base_offset, position)
        self.entries += 1

    def lookup(self, offset: int) -> int:
        """The position of the last entry at or below `offset`; 0 (the segment's start) when there is none."""
        entries = self.entries
        if not entries:
            return 0
        data = self._data()
        wanted = offset - self.base_offset
        found, position = _OFFSET_ENTRY.unpack_from(data, (entries - 1) * 8)
        if wanted >= found:
            return int(position)
        low, high = 0, entries - 1  # the first entry above `wanted` lies in [low, high]
        while low < high:
            middle = (low + high) // 2
            if _OFFSET_AT.unpack_from(data, middle * 8)[0] <= wanted:
                low = middle + 1
            else:
                high = middle
        return int(_OFFSET_ENTRY.unpack_from(data, (low - 1) * 8)[1]) if low else 0

    def upper_bound(self, position: int) -> int | None:
        """The offset of the first entry at or behind file `position`; None when there is none."""
        data = self._data()
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if _OFFSET_AT.unpack_from(data, middle * 8 + 4)[0] < position:
                low = middle + 1
            else:
                high = middle
        return self.offset_at(low) if low < self.entries else None

    def offset_at(self, number: int) -> int:
        return self.base_offset + int(_OFFSET_AT.unpack_from(self._data(), number * 8)[0])

    def entry(self, number: int) -> tuple[int, int]:
        """(offset, position) of entry `number`."""
        relative, position = _OFFSET_ENTRY.unpack_from(self._data(), number * 8)
        return self.base_offset + relative, position

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`."""
        self._truncate_to(offset)


class TimeIndex(Index):
    """Largest timestamp so far → last offset of the batch that brought it."""

    __slots__ = ()
    entry_size = _TIME_ENTRY.size

    @property
    def is_full(self) -> bool:
        """Only the entry that closes the segment fits any more."""
        return self.entries >= self.max_entries - 1

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when there is none."""
        return self.entry(self.entries - 1) if self.entries else (-1, self.base_offset)

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp, offset) of entry `number`."""
        timestamp, relative = _TIME_ENTRY.unpack_from(self._data(), number * 12)
        return timestamp, self.base_offset + relative

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry, after `reserve`, unless the last one's timestamp is as large."""
        if timestamp > self.last()[0]:
            _TIME_ENTRY.pack_into(self._writable(), self.entries * 12, timestamp, offset - self.base_offset)
            self.entries += 1

    def lookup(self, timestamp: int) -> int:
        """The offset of the last entry at or below `timestamp`; the base offset when there is none."""
        data = self._data()
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if _TIMESTAMP_AT.unpack_from(data, middle * 12)[0] <= timestamp:
                low = middle + 1
            else:
                high = middle
        return self.offset_at(low - 1) if low else self.base_offset

    def offset_at(self, number: int) -> int:
        return self.base_offset + int(_OFFSET_AT.unpack_from(self._data(), number * 12 + 8)[0])

    def check(self) -> None:
        super().check()
        if self.entries and self.entry(self.entries - 1)[0] < self.entry(0)[0]:
            raise CorruptIndex(f"{self.path}: the last timestamp is below the first")

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`."""
        self._truncate_to(offset)
