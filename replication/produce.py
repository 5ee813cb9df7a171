"""Waiting until what was appended is replicated (Kafka's DelayedProduce)."""

from __future__ import annotations

from pybroker.protocol.timer import Timer
from pybroker.replication.partition import Partition
from pybroker.replication.waiting import PartitionWait


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
