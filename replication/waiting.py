"""Waiting until a partition's leader has an answer: asked whenever the partition moves, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.timer import Timer
from pybroker.replication.partition import Partition

T = TypeVar("T")


class PartitionWait(Generic[T]):
    """A watcher that asks `ask` until it returns something (None: not yet) or raises KafkaError."""

    __slots__ = ("_ask", "_future")

    def __init__(self, ask: Callable[[], T | None]) -> None:
        self._ask = ask
        self._future: asyncio.Future[T | KafkaError] = asyncio.get_running_loop().create_future()

    async def outcome(self, partition: Partition, timer: Timer, timeout_ms: int) -> T:
        """What `ask` returned. Raises KafkaError: what `ask` raised, or REQUEST_TIMED_OUT."""
        self.partition_moved(partition)
        if not self._future.done():
            task = timer.schedule(max(timeout_ms, 0), self._expire)
            partition.watchers[self] = None
            try:
                await self._future
            finally:
                task.cancel()
                partition.watchers.pop(self, None)
        found = self._future.result()
        if isinstance(found, KafkaError):
            raise found
        return found

    def partition_moved(self, partition: Partition) -> None:
        if self._future.done():
            return
        try:
            found = self._ask()
        except KafkaError as error:
            self._future.set_result(error)
            return
        if found is not None:
            self._future.set_result(found)

    def _expire(self) -> None:
        if not self._future.done():
            self._future.set_result(KafkaError(Errors.REQUEST_TIMED_OUT))
