"""Waiting until all live replicas have forgotten what was deleted (Kafka's DelayedDeleteRecords)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.timer import Timer
from pybroker.replication.partition import Partition


class DeletionWait:
    """Waits for one partition's low watermark, over the replicas that live, to reach `offset`."""

    __slots__ = ("_future", "_is_alive", "_offset", "_partition", "_timeout_ms", "_timer")

    def __init__(
        self, partition: Partition, offset: int, is_alive: Callable[[int], bool], timer: Timer, timeout_ms: int
    ) -> None:
        self._partition = partition
        self._offset = offset
        self._is_alive = is_alive
        self._timer = timer
        self._timeout_ms = timeout_ms
        self._future: asyncio.Future[int | KafkaError] = asyncio.get_running_loop().create_future()

    async def low_watermark(self) -> int:
        """Raises KafkaError: REQUEST_TIMED_OUT, NOT_LEADER_OR_FOLLOWER when the leader moved."""
        task = self._timer.schedule(max(self._timeout_ms, 0), self._expire)
        self._partition.watchers[self] = None
        self.partition_moved(self._partition)
        try:
            outcome = await self._future
        finally:
            task.cancel()
            self._partition.watchers.pop(self, None)
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def partition_moved(self, partition: Partition) -> None:
        if self._future.done():
            return
        leader = partition.leader
        if leader is None:
            self._future.set_result(KafkaError(Errors.NOT_LEADER_OR_FOLLOWER))
            return
        low = leader.low_watermark(partition.log.log_start_offset, self._is_alive)
        if low >= self._offset:
            self._future.set_result(low)

    def _expire(self) -> None:
        if not self._future.done():
            self._future.set_result(KafkaError(Errors.REQUEST_TIMED_OUT))
