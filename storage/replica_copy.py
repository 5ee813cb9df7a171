"""A copy of a log's files in another log directory, brought up to date in rounds while the log goes on.

The copy has the log's bytes, so that the log can go on in it where it is (see log_mover). Segments that are finished
never change: they are copied once, with their indexes. Of the active one comes what was appended since the last round.
A round is planned on the event loop and done in a thread, where nothing but system calls takes time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pybroker.storage import leader_epochs, partition_metadata
from pybroker.storage.files import OpenFile
from pybroker.storage.producer_state import SNAPSHOT_SUFFIX
from pybroker.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.segment import Segment

ROUND_BYTES = 64 << 20  # what one round copies at most: a cancelled move goes on for no longer than that
FINAL_BYTES = 512 << 10  # what may be copied on the event loop, when the log is about to go on in the copy
_PIECE = 1 << 20
# What is copied of the active segment is forced to the disk only if it is more; the log is flushed in its new place
# anyway, and without waiting for the disk the last rounds overtake any producer.
_SYNC_FROM = 4 << 20
_FILES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class TargetFailed(OSError):
    """The directory of the copy could not be written."""


class _Piece(NamedTuple):
    """Bytes [start, end) of a segment's log; with `indexes` it is finished by them."""

    segment: Segment
    file: OpenFile
    start: int
    end: int
    indexes: bool


class Round:
    """Work for a thread: `run`, then `release` on the event loop whether it has been run or not."""

    def __init__(self, directory: Path, target: Path, gone: list[int], pieces: list[_Piece]) -> None:
        self._directory = directory
        self._target = target
        self._gone = gone  # base offsets whose files in the copy are of no use
        self.pieces = pieces

    @property
    def size(self) -> int:
        """Bytes of logs that it copies."""
        return sum(piece.end - piece.start for piece in self.pieces)

    def run(self) -> None:
        """Copy, and force it to the disk. TargetFailed, or OSError where the log's own files can't be read."""
        for base in self._gone:
            for kind in _FILES:
                with of_target():
                    _name(self._target, base, kind).unlink(missing_ok=True)
        for piece in self.pieces:
            self._copy(piece)
        _copy_snapshots(self._directory, self._target)

    def _copy(self, piece: _Piece) -> None:
        base = piece.segment.base_offset
        with of_target():
            out = os.open(_name(self._target, base, LOG_SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            copy_range(piece.file.fd, out, piece.start, piece.end)
            if piece.indexes or piece.end - piece.start > _SYNC_FROM:
                with of_target():
                    os.fsync(out)
        finally:
            os.close(out)
        if piece.indexes:
            for kind in _INDEXES:
                _copy_file(piece.segment.path(kind), _name(self._target, base, kind), sync=True)

    def release(self) -> None:
        for piece in self.pieces:
            piece.file.release()


class ReplicaCopy:
    """The copy of one log in `target`, a directory that is made here. For the event loop, except Round.run."""

    def __init__(self, log: Log, target: Path) -> None:
        """OSError if the directory can't be made."""
        self.log = log
        self.target = target
        self._copied: dict[Segment, int] = {}  # bytes of each segment's log that are in the copy
        self._finished: set[Segment] = set()  # those whose indexes are there, too
        self._discard: list[int] = []
        self._truncations = log.truncations
        target.mkdir()

    @property
    def size(self) -> int:
        """Bytes in the copy's logs."""
        return sum(self._copied.values())

    @property
    def end_offset(self) -> int:
        """An offset below which everything is in the copy, by the log's index."""
        for segment in self.log.segments:
            copied = self._copied.get(segment, 0)
            if copied < segment.size:
                bound = segment.offset_index.upper_bound(copied) if copied else segment.base_offset
                return segment.base_offset if bound is None else bound
        return self.log.log_end_offset

    def plan(self, budget: int) -> Round:
        """The next round, of at most `budget` bytes. It counts as done when `done` is told of it."""
        log = self.log
        if log.truncations != self._truncations:  # what was copied may have become something else
            self._discard += [segment.base_offset for segment in self._copied]
            self._copied.clear()
            self._finished.clear()
            self._truncations = log.truncations
        alive = set(log.segments)
        for segment in [segment for segment in self._copied if segment not in alive]:  # deleted, or cleaned
            del self._copied[segment]
            self._finished.discard(segment)
            self._discard.append(segment.base_offset)
        gone, self._discard = self._discard, []
        return Round(log.directory, self.target, gone, self._pieces(budget))

    def _pieces(self, budget: int) -> list[_Piece]:
        pieces = []
        for segment in self.log.segments:
            if budget <= 0:
                break
            if segment in self._finished:
                continue
            start = self._copied.get(segment, 0)
            end = min(segment.size, start + budget)
            budget -= end - start
            closed = segment is not self.log.active and end == segment.size
            if closed or end > start or segment not in self._copied:
                pieces.append(_Piece(segment, segment.file.retain(), start, end, closed))
        return pieces

    def done(self, finished: Round) -> None:
        """A round has been run without an error."""
        for segment, _, _, end, indexes in finished.pieces:
            self._copied[segment] = end
            if indexes:
                self._finished.add(segment)

    @property
    def is_close(self) -> bool:
        """Whether nothing is missing but a little at the active segment's end."""
        log = self.log
        others = log.segments[:-1]
        return (
            log.truncations == self._truncations
            and len(self._copied) == len(log.segments)
            and all(segment in self._finished for segment in others)
            and log.active in self._copied
            and log.active.size - self._copied[log.active] <= FINAL_BYTES
        )

    def finish(self) -> None:
        """Copy the rest, when `is_close`. From here on the log must not be appended to. OSError, TargetFailed."""
        log, active = self.log, self.log.active
        with of_target():
            out = os.open(_name(self.target, active.base_offset, LOG_SUFFIX), os.O_WRONLY | os.O_CLOEXEC)
        try:
            copy_range(active.file.fd, out, self._copied[active], active.size)
        finally:
            os.close(out)
        self._copied[active] = active.size
        for index, kind in ((active.offset_index, INDEX_SUFFIX), (active.time_index, TIME_INDEX_SUFFIX)):
            with of_target():
                _name(self.target, active.base_offset, kind).write_bytes(index.content())
        _copy_file(active.path(TXN_INDEX_SUFFIX), _name(self.target, active.base_offset, TXN_INDEX_SUFFIX))
        for name in (leader_epochs.FILE_NAME, partition_metadata.FILE_NAME):
            _copy_file(log.directory / name, self.target / name)
        _copy_snapshots(log.directory, self.target)


class of_target:  # reads as a word
    """What fails in here is the copy's directory."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, TargetFailed):
            raise TargetFailed(error.errno, str(error)) from error


def copy_range(source: int, target: int, start: int, end: int) -> None:
    """Bytes [start, end) of a file to the same place of another, in pieces. OSError, TargetFailed."""
    while start < end:
        piece = os.pread(source, min(_PIECE, end - start), start)
        if not piece:
            raise OSError(f"the file ends at {start}, before {end}")
        with of_target():
            written = os.pwrite(target, piece, start)
        start += written


def _copy_snapshots(directory: Path, target: Path) -> None:
    """The same producer snapshots as the log has; one that is there already is the same, as they never change."""
    wanted, found = _snapshots(os.listdir(directory)), _snapshots(os.listdir(target))
    for name in found - wanted:
        with of_target():
            (target / name).unlink(missing_ok=True)
    for name in wanted - found:
        _copy_file(directory / name, target / name)


def _snapshots(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.endswith(SNAPSHOT_SUFFIX)}


def _copy_file(source: Path, target: Path, *, sync: bool = False) -> None:
    """A small file whole; one that is gone (deleted meanwhile, or never there) is left out."""
    with suppress(FileNotFoundError):
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            with of_target():
                out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                copy_range(fd, out, 0, size)
                if sync:
                    with of_target():
                        os.fsync(out)
            finally:
                os.close(out)
        finally:
            os.close(fd)


def _name(directory: Path, base_offset: int, kind: str) -> Path:
    return directory / f"{base_offset:020d}{kind}"
