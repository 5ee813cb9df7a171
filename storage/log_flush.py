"""Forcing a log to the disk, in the host's threads while the log goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.log_append import AppendInfo

_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def flush(log: Log, upto: int | None) -> None:
    """Force everything below `upto` (None: all) to the disk; blocks. OSError when the disk fails."""
    end = log.log_end_offset if upto is None else min(upto, log.log_end_offset)
    if end > log.recovery_point:
        _Flush(log, end).write()
        log.flushed(end)


def flush_later(log: Log, upto: int, done: Callable[[OSError | None], None] | None = None) -> None:
    """Force everything below `upto` to the disk in a thread; then `done`, on the event loop.

    One flush of a log is under way at a time. Who asks meanwhile waits for the next one, which does it for all of them:
    a disk that is slower than its producers falls behind by what is unflushed, and by nothing else.
    """
    log.flush_wanted.append((upto, done))
    if not log.is_flushing:
        _start(log)


def _start(log: Log) -> None:
    wanted, log.flush_wanted = log.flush_wanted, []
    upto = max(offset for offset, _ in wanted)
    job, truncations, directory = _Flush(log, upto), log.truncations, log.directory
    log.is_flushing = True

    def finished(error: OSError | None) -> None:
        log.is_flushing = False
        if error is not None:
            if log.directory == directory:  # else the files were not where they had been
                log.storage_error(error)
        elif log.truncations == truncations:
            log.flushed(upto)
        for _, done in wanted:
            if done is not None:
                done(error)
        if log.flush_wanted and not log.is_flushing:
            _start(log)

    log.host.run(job.write, finished)


def flush_then(log: Log, info: AppendInfo) -> AppendInfo | Awaitable[AppendInfo]:
    """The answer to an append that reached flush.messages: when all of it is on the disk."""
    outcome: list[OSError | None] = []
    waiting: list[asyncio.Future[AppendInfo]] = []

    def done(error: OSError | None) -> None:
        outcome.append(error)
        for future in waiting:
            if future.cancelled():
                continue
            if error is None:
                future.set_result(info)
            else:
                future.set_exception(log.too_late())

    log.flush_at = log.log_end_offset + log.config.flush_messages - 1  # one flush for each so many
    flush_later(log, log.log_end_offset, done)
    if outcome:  # the host did it at once
        if outcome[0] is not None:
            raise log.too_late()
        return info
    waiting.append(asyncio.get_running_loop().create_future())
    return waiting[0]


class _Flush:
    """The files with unflushed data, by name: there may be more of them than a process may have open."""

    def __init__(self, log: Log, upto: int) -> None:
        first = max(0, log.segment_number(log.recovery_point))
        bases = [segment.base_offset for segment in log.segments[first:] if segment.base_offset < upto]
        self._names = [f"{base:020d}" for base in bases]
        self._directory = log.directory
        self._epochs = log.leader_epochs
        self._new = any(base >= log.recovery_point for base in bases)

    def write(self) -> None:
        """Do it; OSError."""
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            for name in self._names:
                for suffix in _SUFFIXES:
                    with suppress(FileNotFoundError):  # deleted meanwhile, or without transactions
                        _sync(name + suffix, directory)
            self._epochs.flush()
            if self._new:
                os.fsync(directory)
        finally:
            os.close(directory)


def _sync(name: str, directory: int) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
