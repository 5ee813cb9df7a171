"""Where each leader epoch of a partition begins: the cache, and its file `leader-epoch-checkpoint`.

Kafka's LeaderEpochFileCache (KIP-101, KIP-279). Entries ascend in epoch and in start offset. Followers truncate by it,
and OffsetForLeaderEpoch and the leader epoch in ListOffsets are answered from it. The file is written at every change
but synced only by `flush`, as recovery brings entries back from the batches. Where it can't be written, the next change
does it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pybroker.storage import checkpoints

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class LeaderEpochCache:
    """The leader epochs of one log."""

    __slots__ = ("_epochs", "_path", "_starts", "_unsaved", "_unsynced", "latest_epoch")

    def __init__(self, directory: Path, entries: list[EpochEntry] | None = None) -> None:
        """Start from `entries`; use `LeaderEpochCache.load` for those on disk."""
        self._path = directory / FILE_NAME
        self._epochs = [entry.epoch for entry in entries or ()]
        self._starts = [entry.start_offset for entry in entries or ()]
        self._unsynced = False
        self._unsaved = False  # the file could not be written
        # Read at every append, so kept as a plain attribute; -1 when there is none.
        self.latest_epoch = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    @classmethod
    def load(cls, directory: Path) -> LeaderEpochCache:
        """The cache of a partition directory; empty without a file, CorruptCheckpoint for an unreadable one."""
        path = directory / FILE_NAME
        entries: list[EpochEntry] = []
        for number, fields in checkpoints.read_lines(path, 2):
            try:
                entry = EpochEntry(int(fields[0]), int(fields[1]))
            except ValueError:
                raise checkpoints.broken(path, f"line {number} is no 'epoch offset'") from None
            if not entries or entry.epoch > entries[-1].epoch:
                entries.append(entry)
        return cls(directory, entries)

    @property
    def entries(self) -> list[EpochEntry]:
        """All entries, ascending."""
        return list(map(EpochEntry, self._epochs, self._starts))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; True if that was news.

        An entry at or above that offset held no record of its epoch, and one of a higher epoch was of a log that has
        been truncated: both give way.
        """
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start_offset >= starts[-1] and not self._unsaved:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self._changed()
        return True

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch of the record at `offset`, None where it is not known."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else None

    def end_offset_for_epoch(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest epoch not above `epoch`, where it ends), or (-1, -1) where that cannot be said.

        An epoch ends where the next one begins, the latest one at the log's end; an epoch above the latest is unknown.
        One below the first known answers itself and the start of the first (KIP-101).
        """
        epochs = self._epochs
        if not epochs or epoch < 0 or epoch > epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        next_at = bisect_right(epochs, epoch)
        found = epochs[next_at - 1] if next_at else epoch
        return found, self._starts[next_at]

    def truncate_from_end(self, end_offset: int, *, save: bool = True) -> None:
        """The log now ends at `end_offset`: epochs that begin at or above it are gone.

        Without `save` the file is left to the next change: whoever loads it before does the same again.
        """
        if (not self._starts or self._starts[-1] < end_offset) and not self._unsaved:
            return
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
        if save:
            self._changed()
        else:
            self._set_latest()

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now begins at `start_offset`: earlier epochs go, the one there begins there."""
        gone = bisect_right(self._starts, start_offset)
        if gone and (gone > 1 or self._starts[0] < start_offset):
            del self._starts[: gone - 1], self._epochs[: gone - 1]
            self._starts[0] = start_offset
            self._changed()

    def clear(self) -> None:
        """Forget all epochs."""
        if self._epochs or self._unsaved:
            self._epochs.clear()
            self._starts.clear()
            self._changed()

    def flush(self) -> None:
        """Make the file durable if it was changed since; blocks, for a thread.

        It only syncs, and never writes, so it may run beside a change: that marks the file as unsynced again.
        """
        if not self._unsynced:
            return
        self._unsynced = False
        with suppress(FileNotFoundError):  # the partition has been deleted meanwhile
            with open(self._path, "rb") as file:
                os.fsync(file.fileno())
            checkpoints.sync_directory(self._path.parent)

    def moved(self, directory: Path) -> None:
        """The partition directory has a new name, or the file has a copy there."""
        self._path = directory / FILE_NAME
        self._unsynced = True

    def _set_latest(self) -> None:
        self.latest_epoch = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def _changed(self) -> None:
        self._set_latest()
        lines = [f"{epoch} {start}" for epoch, start in zip(self._epochs, self._starts, strict=True)]
        self._unsaved = True
        checkpoints.write_lines(self._path, lines, sync=False)
        self._unsaved = False
        self._unsynced = True
