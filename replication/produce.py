"""Waiting until what was appended is replicated (Kafka's DelayedProduce)."""

from __future__ import annotations

import asyncio

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.timer import Timer
from pybroker.replication.partition import Partition


class CommitWait:
    """Waits for one partition's high watermark to reach `offset`."""

    __slots__ = ("_future", "_offset", "_partition", "_timeout_ms", "_timer")

    def __init__(self, partition: Partition, offset: int, timer: Timer, timeout_ms: int) -> None:
        self._partition = partition
        self._offset = offset
        self._timer = timer
        self._timeout_ms = timeout_ms
        self._future: asyncio.Future[KafkaError | None] | None = None

    async def done(self) -> None:
        """Returns when committed. Raises KafkaError: REQUEST_TIMED_OUT, NOT_LEADER_OR_FOLLOWER when the leader moved,
        NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
        if self._partition.is_committed(self._offset):
            return
        self._future = asyncio.get_running_loop().create_future()
        task = self._timer.schedule(max(self._timeout_ms, 0), self._expire)
        self._partition.watchers[self] = None
        try:
            error = await self._future
        finally:
            task.cancel()
            self._partition.watchers.pop(self, None)
        if error is not None:
            raise error

    def partition_moved(self, partition: Partition) -> None:
        assert self._future is not None
        if self._future.done():
            return
        try:
            if partition.is_committed(self._offset):
                self._future.set_result(None)
        except KafkaError as error:
            self._future.set_result(error)

    def _expire(self) -> None:
        assert self._future is not None
        if not self._future.done():
            self._future.set_result(KafkaError(Errors.REQUEST_TIMED_OUT))
