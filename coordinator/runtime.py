"""A coordinator per partition of an internal topic: loads it when this broker becomes its leader, carries out what its
deciders decide, and gives it up when another leads. Serves groups; transactions plug in with a shard of their own.

    nothing --elected--> LOADING --replayed--> ACTIVE --resigned--> nothing

A decision's records are one batch, appended at once and in order; what follows from it happens when the high watermark
has passed it, on a cluster of one in the same call. Loading is one task for all partitions, in steps of 2 ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from pybroker.coordinator import records
from pybroker.coordinator.effects import Effects, TimerKey, Write
from pybroker.coordinator.records import Record, UnknownRecord
from pybroker.protocol.clock import Clock
from pybroker.protocol.codec import DecodeError
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.pace import Pace
from pybroker.protocol.records.header import BatchHeader, iter_headers
from pybroker.protocol.records.record import BatchBuilder, iter_records, read_end_txn_marker
from pybroker.protocol.timer import Timer, TimerTask

logger = logging.getLogger(__name__)

Encode = Callable[[Record], tuple[bytes, bytes | None]]
Decode = Callable[[bytes, bytes | None], Record]

RECORDS_BETWEEN_LOOKS = 64  # records replayed between two looks at the time
AGAIN_MS = 1000  # after a load that failed


class PartitionLogs(Protocol):
    """The logs of the topic's partitions, as the broker hands them in. All methods raise KafkaError
    NOT_LEADER_OR_FOLLOWER where this broker doesn't lead."""

    def append(self, index: int, batch: bytearray, *, transactional: bool) -> int | Awaitable[int]:
        """Append one batch; the log end offset after it. Other KafkaErrors as Produce's."""

    def high_watermark(self, index: int) -> int: ...

    def bounds(self, index: int) -> tuple[int, int]:
        """Log start offset and log end offset."""

    async def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset` on, at most `max_bytes` of them but at least one; b"" at the
        end."""

    def watch(self, index: int, moved: Callable[[], None]) -> Callable[[], None]:
        """Have `moved` called when the high watermark or the leader has moved; returns what ends it."""


class Shard(Protocol):
    """State of one partition, and its deciders (GroupShard)."""

    def replay(self, record: Record, producer_id: int | None = None) -> None: ...

    def end_transaction(self, producer_id: int, commit: bool) -> None: ...

    def loaded(self, effects: Effects) -> None: ...

    def unloaded(self, effects: Effects) -> None: ...

    def timer(self, key: TimerKey, effects: Effects) -> None: ...


S = TypeVar("S", bound=Shard)


class Status(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class _Pending:
    """A write that is appended and not yet committed. `end` is None until the append itself is done."""

    __slots__ = ("end", "failed", "task", "write")

    def __init__(self, write: Write) -> None:
        self.write = write
        self.end: int | None = None
        self.failed: Errors | None = None
        self.task: TimerTask | None = None


class Hosted(Generic[S]):
    """One partition that this broker coordinates. `run` carries out effects."""

    __slots__ = ("_draining", "_pending", "_runtime", "_timers", "_unwatch", "index", "leader_epoch", "shard", "status")

    def __init__(self, runtime: Runtime[S], index: int, leader_epoch: int, shard: S) -> None:
        self.index = index
        self.leader_epoch = leader_epoch
        self.shard = shard
        self.status = Status.LOADING
        self._runtime = runtime
        self._timers: dict[TimerKey, TimerTask] = {}
        self._pending: deque[_Pending] = deque()
        self._unwatch: Callable[[], None] | None = None
        self._draining = False

    # -- effects -------------------------------------------------------------------------------------------------

    def run(self, effects: Effects) -> None:
        """Do what was decided, and what follows from writes that are committed at once."""
        while True:
            for reply, response in effects.answers:
                reply.set(response)
            for key, due_ms in effects.timers:
                self._set_timer(key, due_ms)
            writes = effects.writes
            if not writes:
                return
            effects = Effects()
            for write in writes:
                self._write(write, effects)

    def _set_timer(self, key: TimerKey, due_ms: int | None) -> None:
        task = self._timers.pop(key, None)
        if task is not None:
            task.cancel()
        if due_ms is not None and self.status is Status.ACTIVE:
            delay = due_ms - self._runtime.clock.monotonic_ms()
            self._timers[key] = self._runtime.timer.schedule(max(delay, 0), partial(self._timer_due, key))

    def _timer_due(self, key: TimerKey) -> None:
        self._timers.pop(key, None)
        effects = Effects()
        self.shard.timer(key, effects)
        self.run(effects)

    @property
    def timers(self) -> int:
        """How many wait."""
        return len(self._timers)

    # -- writing -------------------------------------------------------------------------------------------------

    def _write(self, write: Write, effects: Effects) -> None:
        runtime = self._runtime
        try:
            outcome = runtime.logs.append(
                self.index, runtime.batch(write), transactional=write.producer is not None
            )
            if isinstance(outcome, int) and self._is_committed(outcome):
                write.written(Errors.NONE, effects)
                return
        except KafkaError as error:
            write.written(error.code, effects)
            return
        pending = _Pending(write)
        self._pending.append(pending)
        if isinstance(outcome, int):
            self._wait_for(pending, outcome)
        else:
            asyncio.ensure_future(outcome).add_done_callback(partial(self._appended, pending))

    def _is_committed(self, end: int) -> bool:
        runtime = self._runtime
        return runtime.acks != -1 or (not self._pending and runtime.logs.high_watermark(self.index) >= end)

    def _appended(self, pending: _Pending, done: asyncio.Future[int]) -> None:
        """An append that had to wait, for the disk for instance, is through; the partition may be another's by now."""
        error = KafkaError(Errors.NOT_LEADER_OR_FOLLOWER) if done.cancelled() else done.exception()
        if self.status is Status.CLOSED:
            return  # `close` has answered
        if error is None:
            try:
                self._wait_for(pending, done.result())
            except KafkaError as lost:
                self._give_up(pending, lost.code)
        elif isinstance(error, KafkaError):
            self._give_up(pending, error.code)
        else:
            logger.error("A coordinator's append failed: %s: %s", type(error).__name__, error)
            self._give_up(pending, Errors.UNKNOWN_SERVER_ERROR)

    def _wait_for(self, pending: _Pending, end: int) -> None:
        pending.end = end
        runtime = self._runtime
        pending.task = runtime.timer.schedule(
            runtime.write_timeout_ms, partial(self._give_up, pending, Errors.REQUEST_TIMED_OUT)
        )
        if self._unwatch is None:
            self._unwatch = runtime.logs.watch(self.index, self._moved)
        self._moved()

    def _give_up(self, pending: _Pending, error: Errors) -> None:
        """Say that the write failed. Its place in the queue stays: what follows must not overtake it."""
        if pending.failed is None:
            pending.failed = error
            if pending.end is None:
                pending.end = -1
            effects = Effects()
            pending.write.written(error, effects)
            self.run(effects)
            self._moved()

    def _moved(self) -> None:
        """Called within somebody's append: what follows is done when that is over."""
        if not self._draining and self._pending:
            self._draining = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._draining = False
        if not self._pending:
            return
        try:
            mark = self._runtime.logs.high_watermark(self.index)
        except KafkaError:
            return  # not the leader any more: `close` is about to be called
        while self._pending and (end := self._pending[0].end) is not None and end <= mark:
            pending = self._pending.popleft()
            if pending.task is not None:
                pending.task.cancel()
            if pending.failed is None:
                effects = Effects()
                pending.write.written(Errors.NONE, effects)
                self.run(effects)
        if not self._pending and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def close(self) -> None:
        """Another broker coordinates from now on."""
        self.status = Status.CLOSED
        for task in self._timers.values():
            task.cancel()
        self._timers.clear()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        while self._pending:
            pending = self._pending.popleft()
            if pending.task is not None:
                pending.task.cancel()
            if pending.failed is None:
                pending.failed = Errors.NOT_LEADER_OR_FOLLOWER
                effects = Effects()
                pending.write.written(Errors.NOT_LEADER_OR_FOLLOWER, effects)
                self._only_answer(effects)
        effects = Effects()
        self.shard.unloaded(effects)
        self._only_answer(effects)

    def _only_answer(self, effects: Effects) -> None:
        for reply, response in effects.answers:
            reply.set(response)


class Runtime(Generic[S]):
    """The hosted partitions of one internal topic."""

    def __init__(
        self,
        topic: str,
        logs: PartitionLogs,
        new_shard: Callable[[], S],
        clock: Clock,
        timer: Timer,
        *,
        write_timeout_ms: int = 5000,
        acks: int = -1,
        codec: int = 0,
        load_bytes: int = 5 * 1024 * 1024,
        encode: Encode = records.encode,
        decode: Decode = records.decode,
    ) -> None:
        """`encode` and `decode` are of the topic's records; the latter raises UnknownRecord and DecodeError."""
        self.topic = topic
        self.logs = logs
        self.clock = clock
        self.timer = timer
        self.write_timeout_ms = write_timeout_ms
        self.acks = acks
        self.hosted: dict[int, Hosted[S]] = {}
        self._new_shard = new_shard
        self._encode = encode
        self._decode = decode
        self._codec = codec
        self._load_bytes = load_bytes
        self._to_load: deque[Hosted[S]] = deque()
        self._loader: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[Hosted[S]]:
        """The active ones."""
        return (hosted for hosted in list(self.hosted.values()) if hosted.status is Status.ACTIVE)

    @property
    def is_loading(self) -> bool:
        return any(hosted.status is Status.LOADING for hosted in self.hosted.values())

    def get(self, index: int) -> Hosted[S]:
        """Raises KafkaError NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        hosted = self.hosted.get(index)
        if hosted is None:
            raise KafkaError(Errors.NOT_COORDINATOR)
        if hosted.status is Status.LOADING:
            raise KafkaError(Errors.COORDINATOR_LOAD_IN_PROGRESS)
        return hosted

    def batch(self, write: Write) -> bytearray:
        """One batch of all its records, stamped with the time of now."""
        now = self.clock.now_ms()
        producer_id, epoch = (-1, -1) if write.producer is None else write.producer
        builder = BatchBuilder(
            codec=self._codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=write.sequence,
            transactional=write.producer is not None,
        )  # fmt: skip
        for record in write.records:
            key, value = self._encode(record)
            builder.append(now, key, value)
        return builder.build()

    # -- leadership ----------------------------------------------------------------------------------------------

    def elected(self, index: int, leader_epoch: int) -> None:
        """This broker leads the partition. One that it has led already goes on as it is."""
        hosted = self.hosted.get(index)
        if hosted is not None:
            hosted.leader_epoch = leader_epoch
            return
        hosted = self.hosted[index] = Hosted(self, index, leader_epoch, self._new_shard())
        start, end = self.logs.bounds(index)
        if start == end:
            self._activate(hosted)
            return
        self._to_load.append(hosted)
        if self._loader is None or self._loader.done():
            self._loader = asyncio.get_running_loop().create_task(self._load_all(), name=f"loading {self.topic}")

    def resigned(self, index: int) -> None:
        """Another broker leads it, or nobody."""
        hosted = self.hosted.pop(index, None)
        if hosted is not None:
            hosted.close()

    def close(self) -> None:
        """The broker stops: everyone who waits is sent away."""
        if self._loader is not None:
            self._loader.cancel()
        for index in list(self.hosted):
            self.resigned(index)

    def _activate(self, hosted: Hosted[S]) -> None:
        hosted.status = Status.ACTIVE
        effects = Effects()
        hosted.shard.loaded(effects)
        hosted.run(effects)

    # -- loading -------------------------------------------------------------------------------------------------

    async def _load_all(self) -> None:
        pace = Pace()
        while self._to_load:
            hosted = self._to_load.popleft()
            if self.hosted.get(hosted.index) is not hosted:
                continue  # given up before its turn
            started = perf_counter()
            try:
                count = await self._load(hosted, pace)
            except (KafkaError, OSError) as error:
                logger.error("%s-%d can't be loaded, trying again: %s", self.topic, hosted.index, error)
                self.timer.schedule(AGAIN_MS, partial(self._load_again, hosted))
                continue
            if self.hosted.get(hosted.index) is hosted:
                self._activate(hosted)
                if count:
                    logger.info(
                        "Loaded %s-%d: %d records in %.0f ms",
                        self.topic, hosted.index, count, (perf_counter() - started) * 1000,
                    )  # fmt: skip

    def _load_again(self, hosted: Hosted[S]) -> None:
        if self.hosted.get(hosted.index) is hosted:
            del self.hosted[hosted.index]
            try:
                self.elected(hosted.index, hosted.leader_epoch)
            except KafkaError:
                self.hosted.pop(hosted.index, None)  # it does not lead any more

    async def _load(self, hosted: Hosted[S], pace: Pace) -> int:
        """Replay the partition up to the log's end; how many records that were."""
        offset, end = self.logs.bounds(hosted.index)
        count = 0
        while offset < end and self.hosted.get(hosted.index) is hosted:
            data = await self.logs.read(hosted.index, offset, self._load_bytes)
            if not data:
                break
            before = offset
            view = memoryview(data)
            for at, header in iter_headers(view):
                if header.last_offset >= offset:
                    count += await self._replay(hosted.shard, view[at : at + header.size], header, pace)
                    offset = header.last_offset + 1
            if offset == before:
                break
            end = self.logs.bounds(hosted.index)[1]
        return count

    async def _replay(self, shard: S, batch: memoryview, header: BatchHeader, pace: Pace) -> int:
        if header.is_control:
            for record in iter_records(batch, header):
                marker = read_end_txn_marker(record)
                if marker is not None:
                    shard.end_transaction(header.producer_id, marker.commit)
            return 0
        producer_id = header.producer_id if header.is_transactional else None
        count = 0
        for record in iter_records(batch, header):
            if record.key is None:
                logger.error("%s holds a record without a key at %d; it is passed over", self.topic, record.offset)
                continue
            try:
                shard.replay(self._decode(record.key, record.value), producer_id)
            except (UnknownRecord, DecodeError) as error:
                logger.error("%s holds a record at %d that is passed over: %s", self.topic, record.offset, error)
            count += 1
            if count % RECORDS_BETWEEN_LOOKS == 0 and pace.due():
                await pace.rest()
        return count
