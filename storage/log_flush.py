"""Forcing a log to the disk, in the host's threads while the log goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.log_append import AppendInfo
    from pybroker.storage.segment import Segment


def flush(log: Log, upto: int | None) -> None:
    """Force everything below `upto` (None: all) to the disk; blocks. OSError when the disk fails."""
    end = log.log_end_offset if upto is None else min(upto, log.log_end_offset)
    if end > log.recovery_point:
        _Flush(log, end).write()
        log.flushed(end)


def flush_later(log: Log, upto: int, done: Callable[[OSError | None], None] | None = None) -> None:
    """Force everything below `upto` to the disk in a thread; then `done`, on the event loop."""
    job = _Flush(log, upto)
    truncations = log.truncations

    def finished(error: OSError | None) -> None:
        job.release()
        if error is not None:
            log.storage_error(error)
        elif log.truncations == truncations:
            log.flushed(upto)
        if done is not None:
            done(error)

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
                future.set_exception(KafkaError(Errors.KAFKA_STORAGE_ERROR))

    log.flush_at = log.log_end_offset + log.config.flush_messages - 1  # one flush for each so many
    flush_later(log, log.log_end_offset, done)
    if outcome:  # the host did it at once
        if outcome[0] is not None:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR)
        return info
    waiting.append(asyncio.get_running_loop().create_future())
    return waiting[0]


class _Flush:
    """The files with unflushed data, held open from when the flush was asked for."""

    def __init__(self, log: Log, upto: int) -> None:
        first = max(0, log.segment_number(log.recovery_point))
        segments: list[Segment] = [segment for segment in log.segments[first:] if segment.base_offset < upto]
        self._segments = segments
        self._files = [segment.file.retain() for segment in segments]
        self._directory = log.directory
        self._epochs = log.leader_epochs
        self._new = any(segment.base_offset >= log.recovery_point for segment in segments)

    def write(self) -> None:
        """Do it; OSError."""
        for segment, file in zip(self._segments, self._files, strict=True):
            os.fsync(file.fd)
            with suppress(FileNotFoundError):  # deleted meanwhile
                segment.flush_indexes()
        self._epochs.flush()
        if self._new:
            with suppress(FileNotFoundError):
                flush_directory(os.fspath(self._directory))

    def release(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.release()


def flush_directory(path: str) -> None:
    """Make the names in a directory durable. OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
