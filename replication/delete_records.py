"""Waiting until all live replicas have forgotten what was deleted (Kafka's DelayedDeleteRecords)."""

from __future__ import annotations

from collections.abc import Callable

from pybroker.protocol.timer import Timer
from pybroker.replication.partition import Partition
from pybroker.replication.waiting import PartitionWait


class DeletionWait:
    """Waits for one partition's low watermark, over the replicas that live, to reach `offset`."""

    __slots__ = ("_is_alive", "_offset", "_partition", "_timeout_ms", "_timer")

    def __init__(
        self, partition: Partition, offset: int, is_alive: Callable[[int], bool], timer: Timer, timeout_ms: int
    ) -> None:
        self._partition = partition
        self._offset = offset
        self._is_alive = is_alive
        self._timer = timer
        self._timeout_ms = timeout_ms

    async def low_watermark(self) -> int:
        """Raises KafkaError: REQUEST_TIMED_OUT, NOT_LEADER_OR_FOLLOWER when the leader moved."""
        return await PartitionWait(self._reached).outcome(self._partition, self._timer, self._timeout_ms)

    def _reached(self) -> int | None:
        partition = self._partition
        low = partition.check_leader().low_watermark(partition.log.log_start_offset, self._is_alive)
        return low if low >= self._offset else None
