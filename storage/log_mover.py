"""Moving replicas between log directories while they are used (KIP-113; Kafka's ReplicaAlterLogDirsThread).

A move makes a `-future` directory in the target, fills it round by round (see replica_copy), and when little is
missing copies that too and lets the log go on there, in one step on the event loop: the new directory gets the
partition's name, then the old one is named `-delete`, then a mark in the new one goes, which says that a crash came
between the two. Who uses the log notices nothing but that its files are other ones. A move that is under way when the
broker stops begins anew at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.rate import TokenBucket
from pybroker.protocol.types import TopicPartition
from pybroker.storage import checkpoints, replica_copy
from pybroker.storage.directory import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    MOVE_MARK,
    partition_directory,
    suffixed_directory,
)
from pybroker.storage.replica_copy import ReplicaCopy, TargetFailed, of_target

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.log_directory import LogDirectory
    from pybroker.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
_LOOK_AGAIN_MS = 1000  # at the limit, which may have been changed
# They tell what the files don't; the recovery point stays 0 until the log has been flushed in its new place.
_CARRIED = (checkpoints.LOG_START, checkpoints.REPLICATION_OFFSET, checkpoints.CLEANER_OFFSET)


class Move:
    """One replica on its way. `copy` is None until its turn has come."""

    __slots__ = ("copy", "log", "path", "target", "task")

    def __init__(self, log: Log, target: LogDirectory, path: Path) -> None:
        self.log = log
        self.target = target
        self.path = path
        self.copy: ReplicaCopy | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """Bytes copied so far."""
        return self.copy.size if self.copy is not None else 0

    @property
    def lag(self) -> int:
        """Offsets that are not copied yet."""
        done = self.copy.end_offset if self.copy is not None else self.log.log_start_offset
        return max(0, self.log.log_end_offset - done)


class LogMover:
    """The moves of a LogManager, `moves` by partition."""

    __slots__ = ("_copied", "_loop", "_manager", "_preferred", "_stopped", "_swapping", "_turns", "moves")

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: asyncio.Semaphore | None = None
        self._preferred: dict[TopicPartition, LogDirectory] = {}
        self._stopped = False
        self._swapping = threading.Lock()
        self._copied = TokenBucket(0, 0, manager.clock)  # bytes, while there is a limit
        self.moves: dict[TopicPartition, Move] = {}

    def start(self, loop: asyncio.AbstractEventLoop, unfinished: list[tuple[TopicPartition, Path]]) -> None:
        """Begin anew with the moves that the last run left unfinished, by their `-future` directories."""
        self._loop = loop
        at_once = self._manager.config.get("num.replica.alter.log.dirs.threads") or len(self._manager.directories)
        self._turns = asyncio.Semaphore(int(at_once))
        for topic_partition, path in unfinished:
            target = next(each for each in self._manager.online if each.path == path.parent)
            if topic_partition in self._manager.logs:
                self._manager.io.remove_directory(path, 0)
                self.move(topic_partition, target)
            else:
                logger.warning("%s is left as it is: the replica that was to move there is not here", path)

    def stop(self) -> None:
        """No log changes its place after this returns. May be called from another thread."""
        with self._swapping:
            self._stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        for move in self.moves.values():
            if move.task is not None:
                move.task.cancel()

    def directory(self, path: str) -> LogDirectory:
        """The log directory of this path. KafkaError LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR where it is offline."""
        for each in self._manager.directories:
            if str(each.path) == path:
                if not each.online:
                    raise KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
                return each
        raise KafkaError(Errors.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")

    def prefer(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """When a log is made for this partition, which has none here, it is to be made there."""
        self._preferred[topic_partition] = directory

    def preferred(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Where a new log is to be made, if anyone said so; asked once."""
        directory = self._preferred.pop(topic_partition, None)
        return directory if directory is not None and directory.online else None

    def move(self, topic_partition: TopicPartition, target: LogDirectory) -> None:
        """Begin to move a replica that is here, or end a move that was to go elsewhere. A task does the rest."""
        under_way = self.moves.get(topic_partition)
        if under_way is not None:
            if under_way.target is target:
                return
            self.cancel(topic_partition)
        if self._manager.directory_of(topic_partition) is target or self._stopped:
            return
        assert self._loop is not None
        log = self._manager.logs[topic_partition]
        move = Move(log, target, target.path / suffixed_directory(topic_partition, FUTURE_SUFFIX))
        self.moves[topic_partition] = move
        target.arriving[topic_partition] = log
        move.task = self._loop.create_task(self._run(move), name=f"move {move.path.name}")
        logger.info("The replica of %r begins to move from %s to %s", log, log.directory.parent, target)

    def is_moving(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's log is being moved; compacting it meanwhile would only undo work."""
        return topic_partition in self.moves

    def cancel(self, topic_partition: TopicPartition) -> None:
        """End a move, if any: what was copied goes. The log may have gone already."""
        move = self.moves.pop(topic_partition, None)
        if move is not None:
            move.target.arriving.pop(topic_partition, None)
            if move.task is not None:
                move.task.cancel()
            logger.info("The move of %r to %s is given up", move.log, move.target)

    def cancel_to(self, target: LogDirectory) -> None:
        """A directory failed: nothing moves there any more."""
        for topic_partition in [each for each, move in self.moves.items() if move.target is target]:
            self.cancel(topic_partition)

    # --- one move ------------------------------------------------------------------------------------------------

    async def _run(self, move: Move) -> None:
        assert self._turns is not None
        moved = False
        try:
            async with self._turns:
                self._manager.cleaner.abort(move.log.topic_partition)
                move.copy = ReplicaCopy(move.log, move.path)
                (move.path / MOVE_MARK).touch()
                moved = await self._copy_and_swap(move, move.copy)
        except TargetFailed as error:
            logger.error("The move of %r to %s failed: %s", move.log, move.target, error)
            self._manager.fail_directory(move.target, error)
        except OSError as error:
            move.log.storage_error(error)
        finally:
            if not moved:
                self._clear_away(move)

    async def _copy_and_swap(self, move: Move, copy: ReplicaCopy) -> bool:
        while True:
            planned = copy.plan(await self._allowed_bytes())
            self._copied.take(planned.size)
            try:
                await self._in_thread(planned.run)
                copy.done(planned)
            finally:
                planned.release()
            if not copy.is_close:
                continue
            # What the new place has to know of the log before it is there.
            for name in _CARRIED:
                if move.target.want_checkpoint(name):
                    await self._in_thread(partial(move.target.write_wanted, name))
            if move.log.queue is not None:
                async with move.log.queue.turn():
                    if copy.is_close:
                        return self._swap(move, copy)
            elif copy.is_close:
                return self._swap(move, copy)

    async def _allowed_bytes(self) -> int:
        """How much the next round may copy, as soon as it may copy anything (KIP-113's throttle)."""
        bucket = self._copied
        while (rate := self._manager.config.throttle(THROTTLE)) is not None:
            bucket.rate = bucket.burst = rate
            wait_ms = bucket.wait_ms(1)
            if not wait_ms:
                return min(replica_copy.ROUND_BYTES, rate)
            await asyncio.sleep(min(wait_ms, _LOOK_AGAIN_MS) / 1000)
        return replica_copy.ROUND_BYTES

    async def _in_thread(self, action: Callable[[], None]) -> None:
        """Have a thread do it; raises its OSError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: OSError | None) -> None:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._manager.io.run(action, done)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])  # the thread still uses the files
            raise

    def _swap(self, move: Move, copy: ReplicaCopy) -> bool:
        """The log goes on in the copy; False when the broker is stopping. After OSError it is in either place."""
        log, manager = move.log, self._manager
        with self._swapping:
            if self._stopped or self.moves.get(log.topic_partition) is not move:
                return False
            copy.finish()
            source, old = manager.directory_of(log.topic_partition), log.directory
            place = move.target.path / partition_directory(log.topic_partition)
            gone = source.path / suffixed_directory(log.topic_partition, DELETE_SUFFIX)
            try:
                move.path.rename(place)
            except OSError as error:
                raise TargetFailed(error.errno, str(error)) from error
            try:
                old.rename(gone)
            except OSError:
                place.rename(move.path)
                raise
            del self.moves[log.topic_partition]
            move.target.arriving.pop(log.topic_partition, None)
            manager.rehome(log, move.target)
            try:
                log.relocated(place)
                with of_target():
                    (place / MOVE_MARK).unlink()
            finally:
                self._swapped(log, source, move.target, gone)
        return True

    def _swapped(self, log: Log, source: LogDirectory, target: LogDirectory, gone: Path) -> None:
        manager = self._manager
        for directory in (target.path, source.path):
            manager.io.run(partial(checkpoints.sync_directory, directory), lambda _: None)
        log.flush_later()
        manager.io.remove_directory(gone, log.config.file_delete_delay_ms)
        manager.upkeep.checkpoint_soon()
        logger.info("The replica of %r has moved to %s", log, target)

    def _clear_away(self, move: Move) -> None:
        """A move came to nothing; while the broker stops, the directory stays, as a note for the next start."""
        topic_partition = move.log.topic_partition
        if self.moves.get(topic_partition) is move:
            del self.moves[topic_partition]
            move.target.arriving.pop(topic_partition, None)
        if move.copy is not None and not self._stopped and move.target.online:
            self._manager.io.remove_directory(move.path, 0)
