"""Open files that several readers share, slices of them, and reads that refuse to wait for the disk.

A slice holds a counted reference to an OpenFile, never a bare descriptor: a segment that is deleted, cleaned or closed
drops its own reference, and the descriptor lives on until the last slice is sent.

The event loop must not wait for a disk, so it reads with preadv(RWF_NOWAIT), which fails where the page cache lacks the
bytes: `WouldBlock` then tells the caller to have a thread pull them in. Where the system or the file system refuses
that flag (macOS, tmpfs, overlayfs), a PageCache counts as cached what was appended or read lately, and nothing else.

A log may have more segments than a process may have files. Those that are only read open their files when they are
asked, and OpenFiles, one for all logs, has the least lately used close theirs again.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Protocol

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_REFUSED = frozenset((errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS))
_PROBE_EVERY = 256 * 1024
_MOST_PROBES = 16
_PIECE = 1 << 20  # what one blocking read takes from the disk
_CHUNK_BITS = 20  # the fallback remembers whole chunks of 1 MiB
_RECENT_BYTES = 256 << 20
# Of one segment that is read: its log, and until Python 3.13 each of its two indexes, if mapped.
_FILES_OF_READER = 1 if sys.version_info >= (3, 13) else 3
_LIMIT_SHARE = 4  # readers get a quarter of the descriptors
_FEWEST_READERS, _MOST_READERS = 16, 4096
_MOST_PASSED_OVER = 16
UNLIMITED = 1 << 62


class WouldBlock(Exception):
    """The bytes are not in the page cache. Have a thread `pull_in` what is missing, then repeat the read.

    More may be missing then (a read looks at headers first), or pages may be gone again: after a few rounds read with
    blocking=True.
    """

    def __init__(self, file: OpenFile, position: int, length: int) -> None:
        super().__init__(f"{length} bytes at {position} of {file.path}")
        self._file = file
        self._position = position
        self._length = length

    def pull_in(self) -> None:
        """Wait for the disk. Safe in a thread whatever happens to the log: a failure shows in the read that follows."""
        at, end = self._position, self._position + self._length
        with suppress(OSError):
            while at < end and self._file.read(at, min(_PIECE, end - at), blocking=True):
                at += _PIECE


class Reader(Protocol):
    """Who has files open that it can open again at any time."""

    @property
    def in_use(self) -> bool:
        """Whether somebody else holds them too, so that letting go would close nothing."""

    def release(self) -> None:
        """Let go of them."""


class OpenFiles:
    """Who has files open for reading. Beyond `most` of them, the least lately used lets go of its own.

    Those in use, by a slice that is being sent or a flush, are passed over: they count for as long as they are. For
    one thread, the event loop's.
    """

    __slots__ = ("_readers", "most")

    def __init__(self, most: int | None = None) -> None:
        """`most` follows from the limit of open files (RLIMIT_NOFILE) where it is not given."""
        self.most = most or _most_readers(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._readers: dict[Reader, None] = {}  # least lately used first

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, reader: Reader) -> bool:
        return reader in self._readers

    def used(self, reader: Reader) -> None:
        """It has files open from now on, and has just used them."""
        readers = self._readers
        readers.pop(reader, None)
        readers[reader] = None
        if len(readers) > self.most:
            self._close_some(reader)

    def forget(self, reader: Reader) -> None:
        """It has none open any more, or must keep them."""
        self._readers.pop(reader, None)

    def _close_some(self, latest: Reader) -> None:
        excess = len(self._readers) - self.most
        for reader in list(islice(self._readers, excess + _MOST_PASSED_OVER)):
            if not excess or reader is latest:
                return
            del self._readers[reader]
            if reader.in_use:
                self._readers[reader] = None
            else:
                reader.release()
                excess -= 1


def _most_readers(limit: int) -> int:
    """How many segments may have files open for reading under this limit of open files."""
    if limit == resource.RLIM_INFINITY:
        return _MOST_READERS
    return max(_FEWEST_READERS, min(_MOST_READERS, limit // _LIMIT_SHARE // _FILES_OF_READER))


class PageCache:
    """What may be read without waiting for the disk: the kernel's word, or else a memory of what was touched lately.

    `nowait=False` forces the fallback, which remembers at most `recent_bytes`, the least lately touched going first.
    `open_files` are the readers of the files that are looked at through it.
    """

    __slots__ = ("_most_chunks", "_numbers", "_recent", "nowait", "open_files")

    def __init__(
        self,
        *,
        nowait: bool = bool(_NOWAIT),
        recent_bytes: int = _RECENT_BYTES,
        open_files: OpenFiles | None = None,
    ) -> None:
        self.open_files = OpenFiles() if open_files is None else open_files
        self.nowait = nowait and bool(_NOWAIT)
        self._most_chunks = max(1, recent_bytes >> _CHUNK_BITS)
        self._recent: dict[tuple[int, int], None] = {}  # (number of the open file, chunk), oldest first
        self._numbers = count()

    def number(self) -> int:
        """A number for one more open file."""
        return next(self._numbers)

    def touched(self, number: int, position: int, length: int) -> None:
        """These bytes were written or read: in the fallback they now count as cached."""
        if self.nowait:
            return
        recent = self._recent
        for chunk in range(position >> _CHUNK_BITS, (position + max(length, 1) - 1 >> _CHUNK_BITS) + 1):
            recent.pop((number, chunk), None)
            recent[number, chunk] = None
        while len(recent) > self._most_chunks:
            recent.pop(next(iter(recent)), None)

    def has(self, number: int, position: int, length: int) -> bool:
        """Whether the fallback takes all of these bytes for cached."""
        recent = self._recent
        chunks = range(position >> _CHUNK_BITS, (position + max(length, 1) - 1 >> _CHUNK_BITS) + 1)
        return all((number, chunk) in recent for chunk in chunks)


class OpenFile:
    """A descriptor with counted references; the last `release` closes it.

    `limit` is where the file was cut off since it was opened (UNLIMITED: it was not). What lies behind is no longer
    what a slice was promised: such a slice is not `intact`.
    """

    __slots__ = ("_references", "cache", "fd", "limit", "number", "path")

    def __init__(self, path: Path, cache: PageCache, *, create: bool = False) -> None:
        """Open for reading and writing. OSError as open(2) gives it."""
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        self.number = cache.number()
        self.path = path
        self.cache = cache
        self.limit = UNLIMITED
        self._references = 1

    def retain(self) -> OpenFile:
        """One more holder."""
        self._references += 1
        return self

    @property
    def is_shared(self) -> bool:
        """Whether there is more than one holder."""
        return self._references > 1

    def release(self) -> None:
        """One holder fewer; closes the descriptor after the last."""
        self._references -= 1
        if self._references == 0:
            os.close(self.fd)
            self.fd = -1

    def read(self, position: int, length: int, *, blocking: bool = False) -> bytes | bytearray:
        """Up to `length` bytes at `position`, fewer only at the end of the file.

        Raises WouldBlock when they are not cached and `blocking` is not set, OSError when the disk fails.
        """
        cache = self.cache
        if blocking:
            data = os.pread(self.fd, length, position)
            cache.touched(self.number, position, length)
            return data
        if cache.nowait:
            buffer = bytearray(length)
            try:
                got = os.preadv(self.fd, (buffer,), position, _NOWAIT)
            except BlockingIOError:
                raise WouldBlock(self, position, length) from None
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                cache.nowait = False
            else:
                if got < length:  # the rest is not cached, or there is none: only a blocking read can tell
                    raise WouldBlock(self, position, length)
                return buffer
        if not cache.has(self.number, position, length):
            raise WouldBlock(self, position, length)
        return os.pread(self.fd, length, position)

    def is_cached(self, position: int, length: int) -> bool:
        """Whether these bytes can (most likely) be sent without waiting for the disk; large ranges are probed."""
        if length <= 0:
            return True
        if not self.cache.nowait:
            return self.cache.has(self.number, position, length)
        last = position + length - 1
        step = max(_PROBE_EVERY, length // (_MOST_PROBES - 1))
        try:
            for at in (*range(position, last, step), last):
                self.read(at, 1)
        except WouldBlock:
            return False
        return True


class FileSlice:
    """Bytes [position, position + length) of a file, to be sent by sendfile. Whoever gets it must `release` it."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: OpenFile, position: int, length: int) -> None:
        self.file = file.retain()
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def release(self) -> None:
        """Let go of the file; once, after which the slice is of no use."""
        self.file.release()

    @property
    def intact(self) -> bool:
        """False once the file was truncated below the slice's end: a connection that still sends it must be closed."""
        return self.position + self.length <= self.file.limit

    def cached(self) -> bool:
        """Whether sending it will not wait for the disk."""
        return self.file.is_cached(self.position, self.length)

    def read(self) -> bytes:
        """The bytes themselves; may block."""
        return b"".join(self.pieces())

    def read_at(self, position: int, length: int) -> bytes | bytearray:
        """Bytes of the slice from `position` on, fewer only at its end or where the file is shorter now; may block."""
        length = min(length, self.length - position)
        return self.file.read(self.position + position, length, blocking=True)

    def pull_in(self) -> None:
        """Bring it into the page cache, piece by piece; blocks, for a thread."""
        for _ in self.pieces():
            pass

    def pieces(self) -> Iterator[bytes | bytearray]:
        """The bytes in pieces of at most 1 MiB; may block."""
        at, end = self.position, self.position + self.length
        while at < end:
            piece = self.file.read(at, min(_PIECE, end - at), blocking=True)
            if not piece:
                return
            yield piece
            at += len(piece)
