"""Waiting until what was appended is replicated (Kafka's DelayedProduce)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.later import Later
from pybroker.protocol.timer import Timer
from pybroker.replication.partition import Partition
from pybroker.replication.waiting import PartitionWait

R = TypeVar("R")  # a row of the response
T = TypeVar("T")
#: What is called for a row that can't be answered with success.
Failed = Callable[[R, Partition, KafkaError], None]


class _Row(Generic[R]):
    """One partition of a Produce whose records are not replicated yet."""

    __slots__ = ("offset", "partition", "row", "wait")

    def __init__(self, row: R, partition: Partition, offset: int, wait: ProduceWait[R, T]) -> None:
        self.row = row
        self.partition = partition
        self.offset = offset
        self.wait = wait
        partition.watchers[self] = None

    def partition_moved(self, partition: Partition) -> None:
        try:
            if partition.is_committed(self.offset):
                self.wait.settled(self, None)
        except KafkaError as error:
            self.wait.settled(self, error)


class ProduceWait(Generic[R, T]):
    """Waits, for a whole Produce, until the high watermark of each of its partitions has reached an offset, or
    `timeout_ms` are over; `failed` is called for each row where that isn't so. `result` is `response` then.
    """

    __slots__ = ("_failed", "_response", "_rows", "_timeout", "result")

    def __init__(
        self, response: T, waiting: Iterable[tuple[R, Partition, int]], failed: Failed[R], timer: Timer, timeout_ms: int
    ) -> None:
        self.result: Later[T] = Later()
        self._response = response
        self._failed = failed
        self._rows = {_Row(row, partition, offset, self): None for row, partition, offset in waiting}
        self._timeout = timer.schedule(max(timeout_ms, 0), self._expire)

    def settled(self, row: _Row[R], error: KafkaError | None) -> None:
        """For the rows. KafkaErrors as Partition.is_committed raises them, and REQUEST_TIMED_OUT."""
        del self._rows[row]
        row.partition.watchers.pop(row, None)
        if error is not None:
            self._failed(row.row, row.partition, error)
        if not self._rows:
            self._timeout.cancel()
            # Not in this call: it is a follower's Fetch being read, or an append.
            asyncio.get_running_loop().call_soon(self.result.set_result, self._response)

    def _expire(self) -> None:
        for row in tuple(self._rows):
            self.settled(row, KafkaError(Errors.REQUEST_TIMED_OUT))


class CommitWait:
    """Waits for one partition's high watermark to reach `offset`."""

    __slots__ = ("_offset", "_partition", "_timeout_ms", "_timer")

    def __init__(self, partition: Partition, offset: int, timer: Timer, timeout_ms: int) -> None:
        self._partition = partition
        self._offset = offset
        self._timer = timer
        self._timeout_ms = timeout_ms

    async def done(self) -> None:
        """Returns when committed. Raises KafkaError: REQUEST_TIMED_OUT, NOT_LEADER_OR_FOLLOWER when the leader moved,
        NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
        partition, offset = self._partition, self._offset
        wait = PartitionWait(lambda: partition.is_committed(offset) or None)
        await wait.outcome(partition, self._timer, self._timeout_ms)
