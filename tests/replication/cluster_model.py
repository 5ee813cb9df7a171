"""A cluster in one thread, with a clock and a network of its own: Partition, LeaderState, PartitionReader, Follower and
IsrChanges are the real ones; the log is a list, the controller a few lines, and one random source orders everything."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import Struct
from types import SimpleNamespace
from typing import Any

from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)
from pybroker.protocol.messages.fetch import FetchPartition
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from pybroker.protocol.uuids import ZERO_UUID
from pybroker.replication.fetch import Ask, FetchParameters, PartitionReader
from pybroker.replication.follower import Follower, State
from pybroker.replication.isr import IsrChanges, KnownState
from pybroker.replication.partition import Partition
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.log_append import AppendInfo

RECORD = Struct(">qiq")  # offset, leader epoch, value
LAG_MS = 60
DELAYS_MS = (1, 1, 2, 3, 5, 8, 40)
BROKERS = (1, 2, 3)
TOPIC = "t"


class _Epochs(LeaderEpochCache):
    """Without a file."""

    __slots__ = ()

    def _changed(self) -> None:
        self.latest_epoch = self._epochs[-1] if self._epochs else -1


class ModelLog:
    """What Partition and Follower need of a log; records are (leader epoch, value), from `log_start_offset` on."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.log_start_offset = 0
        self.high_watermark = 0
        self.epochs = _Epochs(Path())
        self.config = SimpleNamespace(min_insync_replicas=1)

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for_epoch(epoch, self.log_end_offset)

    def start_leader_epoch(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.log_end_offset)

    def update_high_watermark(self, offset: int) -> None:
        assert self.high_watermark <= offset <= self.log_end_offset
        self.high_watermark = offset

    def append_as_leader(self, value: int, leader_epoch: int, **_: Any) -> AppendInfo:
        at = self.log_end_offset
        self.records.append((leader_epoch, value))
        return AppendInfo(at, at, -1, RECORD.size, self.log_start_offset)

    def append_as_follower(self, records: memoryview) -> AppendInfo:
        for offset, epoch, value in RECORD.iter_unpack(records):
            assert offset == self.log_end_offset
            if epoch > self.latest_epoch:
                self.epochs.assign(epoch, offset)
            self.records.append((epoch, value))
        return AppendInfo(0, self.log_end_offset - 1, -1, len(records), self.log_start_offset)

    def read(self, offset: int, max_bytes: int, *, max_offset: int, **_: Any) -> Any:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(Errors.OFFSET_OUT_OF_RANGE)
        most = min(max_offset, offset + max(1, max_bytes // RECORD.size))
        packed = b"".join(
            RECORD.pack(at, *self.records[at - self.log_start_offset]) for at in range(offset, most)
        )
        return SimpleNamespace(records=packed)

    def truncate_to(self, offset: int) -> bool:
        offset = max(offset, self.log_start_offset)
        news = offset < self.log_end_offset
        del self.records[offset - self.log_start_offset :]
        self.epochs.truncate_from_end(self.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        return news

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.records.clear()
        self.epochs.clear()
        self.log_start_offset = self.high_watermark = offset

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        assert offset <= self.high_watermark
        if offset <= self.log_start_offset:
            return False
        del self.records[: offset - self.log_start_offset]
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True



class SlowLog(ModelLog):
    """A log whose disk is slow: what a follower appends is there when told, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: deque[tuple[memoryview, asyncio.Future[AppendInfo]]] = deque()

    def append_as_follower(self, records: memoryview) -> asyncio.Future[AppendInfo]:  # type: ignore[override]
        future: asyncio.Future[AppendInfo] = asyncio.get_running_loop().create_future()
        self.begun.append((records, future))
        return future

    def finish(self, error: KafkaError | None = None) -> None:
        records, future = self.begun.popleft()
        if error is None:
            future.set_result(super().append_as_follower(records))
        else:
            future.set_exception(error)


class Network:
    """Calls things later; what is sent may be late or lost, but for what the controller repeats until it arrives."""

    def __init__(self, random: Random, clock: ManualClock, loss: float) -> None:
        self.random, self.clock, self.loss = random, clock, loss
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def later(self, ms: int, call: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.clock.monotonic_ms() + ms, self._count, call))

    def send(self, call: Callable[[], object], late: float = 0.0) -> None:
        """`late`: how likely it is that the receiver, which was paused, takes it when nobody waits any more."""
        if self.random.random() < late:
            self.later(self.random.randint(30, 200), call)
        elif self.random.random() >= self.loss:
            self.later(self.random.choice(DELAYS_MS), call)

    def step(self) -> bool:
        if not self._queue:
            return False
        at, _, call = heapq.heappop(self._queue)
        self.clock.advance(max(0, at - self.clock.monotonic_ms()))
        call()
        return True


class Broker:
    """One broker with one partition. Its log survives a crash; of its watermark what the last checkpoint had."""

    def __init__(self, broker_id: int, cluster: Cluster) -> None:
        self.id, self.cluster = broker_id, cluster
        self.log = ModelLog()
        self.checkpoint = 0
        self.life = 0  # counts its starts: what was meant for an earlier one does not arrive
        self.alive = False
        self.fetch_number = 0

    def start(self) -> None:
        self.life += 1
        self.alive = True
        self.log.high_watermark = max(min(self.checkpoint, self.log.log_end_offset), self.log.log_start_offset)
        self.partition = Partition(TOPIC, 0, ZERO_UUID, self.log, self.id)  # type: ignore[arg-type]
        self.follower: Follower | None = None
        self.known: KnownState | None = None
        self.changes = IsrChanges(
            self.id, self.cluster.clock, LAG_MS, is_alive=lambda _: True, known=lambda *_: self.known
        )
        self.changes.on_waiting = self.propose
        self.proposing = False
        self.partition.isr_keeper = self.changes
        self.reader = PartitionReader(lambda *_: self.partition, self.cluster.clock.monotonic_ms)
        self.check_isr(self.life)
        self.fetch(self.life)

    def crash(self) -> None:
        self.alive = False

    def current(self, life: int) -> bool:
        return self.alive and life == self.life

    # -- the controller's orders

    def order(self, state: LeaderAndIsrPartitionState) -> None:
        if state.leader_epoch <= self.partition.leader_epoch:
            return
        self.follower = None
        if state.leader == self.id:
            self.partition.make_leader(state, self.cluster.clock.monotonic_ms())
        else:
            self.partition.make_follower(state)
            if state.leader >= 0:
                tells = self.cluster.tells_epochs
                self.follower = Follower(self.log, state.leader_epoch, tells_epochs=tells, backoff_ms=20)
        self.cluster.check()
        self.fetch(self.life)  # over another connection: what was asked before is not waited for, but may arrive

    # -- following

    def fetch(self, life: int) -> None:
        """One question after the other; one that is not answered in time is given up."""
        if not self.current(life):
            return
        self.fetch_number += 1
        number, follower, cluster = self.fetch_number, self.follower, self.cluster
        state = follower.prepare(cluster.clock.monotonic_ms()) if follower is not None else None
        if follower is not None and state in (State.FETCHING, State.TRUNCATING, State.LOCATING):
            leader = cluster.brokers[self.partition.leader_id]
            offset, last_epoch = self.log.log_end_offset, follower.last_fetched_epoch
            start = self.log.log_start_offset

            def answer(act: Callable[[], object]) -> None:
                if self.current(life) and number == self.fetch_number:
                    if self.follower is follower:
                        act()
                        cluster.check()
                    self.fetch(life)

            asked = FetchPartition(
                partition=0, current_leader_epoch=follower.leader_epoch, fetch_offset=offset,
                last_fetched_epoch=last_epoch if cluster.tells_epochs else -1, log_start_offset=start,
                partition_max_bytes=RECORD.size * cluster.random.randint(1, 4),
            )  # fmt: skip
            cluster.network.send(lambda: leader.answer(self.id, state, follower, asked, answer), cluster.late)
        cluster.network.later(60, lambda: self.fetch(life) if number == self.fetch_number else None)

    def answer(
        self, replica: int, state: State, follower: Follower, asked: FetchPartition,
        answer: Callable[[Callable[[], object]], None],
    ) -> None:  # fmt: skip
        """As leader."""
        if not self.alive:
            return
        send, now = self.cluster.network.send, self.cluster.clock.monotonic_ms
        if state is State.FETCHING:
            how = FetchParameters(replica, 0, 1, 1 << 20, 0, False, self.cluster.tells_epochs)
            data = self.reader.read([Ask(TOPIC, ZERO_UUID, asked)], how, self).answers[0][1]
            self.cluster.check()
            send(lambda: answer(lambda: follower.on_fetch(data, asked.fetch_offset, now())))
            return
        try:
            self.partition.check_leader(asked.current_leader_epoch)
        except KafkaError as error:
            code = error.code
            send(lambda: answer(lambda: follower.failed(code, now())))
            return
        if state is State.TRUNCATING:
            epoch, end = self.log.end_offset_for_epoch(follower.last_fetched_epoch)
            send(lambda: answer(lambda: follower.on_epoch_end(0, epoch, end, now())))
        else:
            first, last = self.log.log_start_offset, self.log.log_end_offset
            send(lambda: answer(lambda: follower.on_located(first, last, now())))

    def ask_ready(self, ask: Ask) -> None:
        """Nobody waits at a leader here."""

    # -- leading

    def produce(self, value: int) -> None:
        """acks=all: acknowledged when it is committed, by the leader of the epoch that appended it."""
        cluster, life, partition = self.cluster, self.life, self.partition
        try:
            info = partition.append(value, -1, 9)  # type: ignore[arg-type]
        except KafkaError:
            return
        assert isinstance(info, AppendInfo)
        offset = info.last_offset
        leader = partition.leader
        cluster.check()

        class Producer:
            def partition_moved(producer, _: Partition) -> None:
                if self.current(life) and partition.leader is leader:
                    try:
                        if not partition.is_committed(offset + 1):
                            return
                        cluster.acknowledged[offset] = value
                    except KafkaError:
                        pass
                partition.watchers.pop(producer, None)

        waiting = Producer()
        partition.watchers[waiting] = None
        waiting.partition_moved(partition)

    def check_isr(self, life: int) -> None:
        if self.current(life):
            self.changes.check(self.partition, self.reader.last_fetch_ms)
            self.cluster.check()
            self.cluster.network.later(LAG_MS // 2, lambda: self.check_isr(life))

    def propose(self) -> None:
        if self.proposing or (taken := self.changes.take()) is None:
            return
        self.proposing = True
        changes, request = taken
        life, done = self.life, False

        def settle(response: AlterPartitionResponse | None) -> None:
            nonlocal done
            if done or not self.current(life):
                return
            done, self.proposing = True, False
            if response is None or response.error_code:
                self.changes.again(changes)
            else:
                self.changes.answered(changes, response)
            self.cluster.check()
            self.cluster.network.later(10, lambda: self.propose() if self.current(life) else None)

        network, controller = self.cluster.network, self.cluster
        registration = controller.registered.get(self.id)

        def arrive() -> None:
            if not done:  # what was given up went with its connection; it does not come after what was sent later
                response = controller.alter(registration, request)
                network.send(lambda: settle(response))

        network.send(arrive)
        network.later(80, lambda: settle(None))


class Cluster:
    """Brokers, and the controller's side. `check` finds what must never be."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.clock = ManualClock()
        self.network = Network(random, self.clock, random.choice((0.0, 0.02, 0.1)))
        self.tells_epochs = random.random() < 0.8
        # How often leadership moves, and how many fetches arrive when their followers have given them up.
        self.restless, self.late = random.choice(((0.05, 0.0), (0.05, 0.1), (0.3, 0.4)))
        self.committed: list[tuple[int, int]] = []
        self.acknowledged: dict[int, int] = {}
        self.advanced: dict[int, int] = {}  # leader epoch → the broker that moved the watermark in it
        self.marks: dict[int, tuple[int, int]] = {}
        self.leader, self.leader_epoch, self.partition_epoch = 1, 0, 0
        self.isr: tuple[int, ...] = BROKERS
        self.registered: dict[int, tuple[int, int]] = {}  # live brokers → (id, broker epoch)
        self.registrations = 0
        self.values = 0
        self.brokers = {broker: Broker(broker, self) for broker in BROKERS}
        for broker in self.brokers.values():
            broker.start()
            self.register(broker.id)
        self.tell()

    # -- the controller

    def register(self, broker_id: int) -> None:
        """The broker has a session (again)."""
        self.registrations += 1
        self.registered[broker_id] = broker_id, self.registrations
        if self.leader < 0 and broker_id in self.isr:
            self.elect()
        self.tell([broker_id])

    def expire(self, broker_id: int) -> None:
        """Its session is over, whether it knows or not."""
        if self.registered.pop(broker_id, None) is not None:
            self.elect(without=broker_id)

    def elect(self, without: int | None = None) -> None:
        live = [each for each in self.isr if each in self.registered]
        if without is not None and self.leader != without and without not in self.isr:
            return
        if self.leader not in live:
            self.leader = live[0] if live else -1
        self.isr = tuple(live) or self.isr
        self.leader_epoch += 1
        self.partition_epoch += 1
        self.tell()

    def move_leader(self, to: int | None = None) -> None:
        """To another in the ISR; to one of them only, if it can lead."""
        live = [each for each in self.isr if each in self.registered and each != self.leader]
        if to is not None:
            live = [each for each in live if each == to]
        if self.leader >= 0 and live:
            self.leader = self.random.choice(live)
            self.leader_epoch += 1
            self.partition_epoch += 1
            self.tell()

    def tell(self, to: list[int] | None = None) -> None:
        """LeaderAndIsr, repeated until it arrives or the broker has another life; UpdateMetadata with it."""
        state = LeaderAndIsrPartitionState(
            partition_index=0, leader=self.leader, leader_epoch=self.leader_epoch, isr=list(self.isr),
            partition_epoch=self.partition_epoch, replicas=list(BROKERS),
        )  # fmt: skip
        for broker_id in to or list(self.registered):
            broker = self.brokers[broker_id]
            self._deliver(broker, broker.life, state)

    def _deliver(self, broker: Broker, life: int, state: LeaderAndIsrPartitionState) -> None:
        def arrive() -> None:
            if not broker.current(life):
                return
            if self.random.random() < 0.2:
                self.network.later(30, arrive)
                return
            if broker.known is None or state.partition_epoch > broker.known.partition_epoch:
                broker.known = KnownState(state.leader_epoch, state.partition_epoch, tuple(state.isr))
            broker.order(state)

        self.network.later(self.random.randint(1, 10), arrive)

    def alter(self, registration: tuple[int, int] | None, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if registration is None or self.registered.get(registration[0]) != registration:
            return AlterPartitionResponse(error_code=Errors.STALE_BROKER_EPOCH)
        asked = request.topics[0].partitions[0]
        row = ResponsePartitionData(partition_index=0, error_code=self._judge(asked))
        if not row.error_code:
            if set(asked.new_isr) != set(self.isr):
                self.isr = tuple(asked.new_isr)
                self.partition_epoch += 1
            row.leader_id, row.leader_epoch = self.leader, self.leader_epoch
            row.isr, row.partition_epoch = list(self.isr), self.partition_epoch
        return AlterPartitionResponse(topics=[ResponseTopicData(topic_name=TOPIC, partitions=[row])])

    def _judge(self, asked: PartitionData) -> Errors:
        if asked.leader_epoch != self.leader_epoch:
            return Errors.FENCED_LEADER_EPOCH
        if set(asked.new_isr) == set(self.isr):
            return Errors.NONE
        if asked.partition_epoch != self.partition_epoch:
            return Errors.INVALID_UPDATE_VERSION
        return Errors.NONE if all(each in self.registered for each in asked.new_isr) else Errors.INELIGIBLE_REPLICA

    # -- what must never be

    def check(self) -> None:
        """Committed records are the same everywhere and stay; one leader an epoch moves the watermark; no leader takes
        a follower to be further than it is."""
        for broker in self.brokers.values():
            if broker.life:
                self._check_beliefs(broker)
            log = broker.log
            if self.marks.get(broker.id) == (log.high_watermark, log.log_end_offset):
                continue
            self.marks[broker.id] = log.high_watermark, log.log_end_offset
            mine = log.records[: log.high_watermark - log.log_start_offset]
            known = self.committed[log.log_start_offset : log.high_watermark]
            assert mine[: len(known)] == known, f"broker {broker.id} diverges below its high watermark"
            if len(mine) > len(known):
                leader = broker.partition.leader
                assert leader is not None, f"broker {broker.id} committed what no leader had"
                first = self.advanced.setdefault(leader.leader_epoch, broker.id)
                assert first == broker.id, f"two leaders moved the watermark in epoch {leader.leader_epoch}"
                self.committed += mine[len(known) :]
                self._check_held()
        for offset, value in self.acknowledged.items():
            assert self.committed[offset][1] == value, f"the acknowledged record at {offset} is another"

    def _check_beliefs(self, broker: Broker) -> None:
        leader = broker.partition.leader
        for follower_id, progress in leader.followers.items() if leader is not None else ():
            follower = self.brokers[follower_id]
            if not follower.life or progress.log_end_offset <= 0:
                continue
            if follower.partition.leader_epoch != leader.leader_epoch:  # it has not heard of this leader, or of a later
                continue
            log, last = follower.log, progress.log_end_offset - 1
            assert last < log.log_end_offset, f"broker {follower_id} is not as far as its leader {broker.id} believes"
            starts = log.log_start_offset, broker.log.log_start_offset
            if last >= max(starts):
                there, here = log.records[last - starts[0]], broker.log.records[last - starts[1]]
                assert there == here, f"broker {follower_id} has other records than its leader {broker.id} believes"

    def _check_held(self) -> None:
        """What has just been committed is in the logs of all that the controller might make the leader."""
        end = len(self.committed)
        for broker_id in self.isr:
            log = self.brokers[broker_id].log
            held = log.records[: end - log.log_start_offset]
            assert held == self.committed[log.log_start_offset :], f"broker {broker_id} is in sync but lacks something"
