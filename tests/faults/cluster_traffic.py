"""Clients of a cluster that is hurt: producers that know what was acknowledged, a group that knows what it saw.

Every value is `name:partition:number:` and filling; a producer numbers its records in each partition from 0.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.faults.cluster_rounds import Cluster
from tests.faults.writers import RECORDS, Writer
from tests.support.broker import wait_until
from tests.support.wire import WireClient

At = tuple[str, int]

OUT_OF_ORDER = 45
#: What a producer of acks=all may be told while leaders move: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE,
#: NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS (also after the append); what lies behind a refused
#: batch of the same connection is out of order.
RETRIABLE = {3, 5, 6, 7, 19, 20}
PROGRESS_S = 120.0
CLIENT_S = 8.0
SIZE = 120


def value_of(name: str, partition: int, number: int) -> bytes:
    return b"%s:%d:%d:".ljust(SIZE, b".") % (name.encode(), partition, number)


def quiet(name: str) -> dict[str, Any]:
    """librdkafka's log: none, or with PYBROKER_RDKAFKA_LOG its tales of idempotence in files of that name."""
    target = os.environ.get("PYBROKER_RDKAFKA_LOG")
    if target is None:
        return {"log_level": 0}
    logger = logging.getLogger(f"rdkafka.{name}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.FileHandler(f"{target}.{name}")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return {"logger": logger, "log_level": 7, "debug": "eos,msg"}


class Client(Protocol):
    """Runs in a thread until it is to stop; `failures` says what must not have happened."""

    name: str
    failures: list[str]

    def run(self, stop: Callable[[], bool]) -> None: ...


class NumberingProducer(Client, Protocol):
    """Its records are numbered in each partition; `next` is the number that comes next, `total` counts those that were
    acknowledged."""

    @property
    def total(self) -> int: ...
    @property
    def next(self) -> Mapping[At, int]: ...
    def acknowledged_at(self, at: At) -> Mapping[int, bytes]:
        """Values by offset."""
        ...

    def forget_below(self, at: At, start: int) -> None: ...


class Sender:
    """A librdkafka producer, idempotent, acks=all, to all partitions of some topics, at random; of a keyed topic it
    knows the last value of each key."""

    def __init__(self, name: str, cluster: Cluster, counts: dict[str, int], keys: int = 0) -> None:
        self.name, self.counts, self.keys = name, counts, keys
        self.acknowledged: dict[At, dict[int, bytes]] = defaultdict(dict)  # offset → value
        self.last: dict[At, dict[bytes, bytes | None]] = defaultdict(dict)  # sent, by key
        self.next: dict[At, int] = defaultdict(int)
        self.total = 0
        self.failures: list[str] = []
        self._random = random.Random(name)
        self._producer = Producer({
            "bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5,
            "batch.size": 16384, "topic.metadata.refresh.interval.ms": 1000, "request.timeout.ms": 5000,
            "socket.timeout.ms": 8000, "message.timeout.ms": 0, "retry.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500, **quiet(name),
        })  # fmt: skip

    def run(self, stop: Callable[[], bool]) -> None:
        while not stop():
            for _ in range(8):
                self._send()
            self._producer.poll(0.02)
        left = self._producer.flush(PROGRESS_S)
        assert left == 0, f"{self.name}: {left} records are not acknowledged"

    def acknowledged_at(self, at: At) -> Mapping[int, bytes]:
        return self.acknowledged.get(at, {})

    def forget_below(self, at: At, start: int) -> None:
        _forget(self.acknowledged[at], start)

    def _send(self) -> None:
        topic = self._random.choice(list(self.counts))
        at = topic, self._random.randrange(self.counts[topic])
        number = self.next[at]
        key = b"%d" % self._random.randrange(self.keys) if self.keys else None
        value = None if key and self._random.random() < 0.05 else value_of(self.name, at[1], number)

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(f"{self.name}: {at} {number}: {error}")
                return
            self.total += 1
            if message.offset() is not None:  # a batch may be acknowledged by the answer to the one behind it
                self.acknowledged[at][message.offset()] = value or b""

        try:
            self._producer.produce(topic, value, key=key, partition=at[1], on_delivery=delivered)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError._UNKNOWN_PARTITION, error
            return  # a new one, of which the producer has not heard yet
        self.next[at] += 1
        if key:
            self.last[at][key] = value


class _Leader:
    """What Writer.run asks of a broker: a client of it."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster, self._broker_id = cluster, broker_id

    def client(self, timeout: float) -> WireClient:
        return self._cluster.client(self._broker_id, min(timeout, CLIENT_S))


class WireWriter:
    """An idempotent Writer that goes where its partition's leader is, and sends again what may have been lost."""

    def __init__(self, name: str, cluster: Cluster, at: At) -> None:
        self.name, self.at, self._cluster = name, at, cluster
        self._writer = Writer(f"{name}:{at[1]}", *at, acks=-1, idempotent=True, size=SIZE)
        self.failures: list[str] = []

    @property
    def total(self) -> int:
        """Records acknowledged so far."""
        writer = self._writer
        return writer.next - RECORDS * (len(writer.again) + len(writer.in_flight))

    @property
    def next(self) -> dict[At, int]:
        return {self.at: self._writer.next}

    def acknowledged_at(self, at: At) -> Mapping[int, bytes]:
        batches = self._writer.acknowledged.items() if at == self.at else ()
        return {base + each: value for base, sent in batches for each, value in enumerate(sent.values)}

    def forget_below(self, at: At, start: int) -> None:
        if at == self.at:
            _forget(self._writer.acknowledged, start)

    def run(self, stop: Callable[[], bool]) -> None:
        writer = self._writer
        deadline = time.monotonic() + PROGRESS_S
        while not stop() or writer.again or writer.in_flight:
            before = self.total
            state = self._cluster.partitions().get(self.at)
            if state is not None and state[0] in self._cluster.nodes:
                try:
                    writer.run(_Leader(self._cluster, state[0]), stop)  # type: ignore[arg-type]
                except TimeoutError:
                    pass  # a paused broker, or one without enough replicas in sync
                self._look_at_refusals(state[0])
            if self.total > before or not stop():
                deadline = time.monotonic() + PROGRESS_S
            assert time.monotonic() < deadline, f"{self.name}: not acknowledged: {writer.again} {writer.in_flight}"
            time.sleep(0.05)

    def _look_at_refusals(self, leader: int) -> None:
        refused, self._writer.refused = self._writer.refused, []
        if refused:
            told = f"{self.name}: broker {leader} refused with {refused}"
            assert refused[0] in RETRIABLE, told
            assert set(refused) <= RETRIABLE | {OUT_OF_ORDER}, told


class Member:
    """A consumer of a group: what it saw at which offset, and what of that it committed."""

    def __init__(self, name: str, cluster: Cluster, group: str, topics: Sequence[str], seen: Seen) -> None:
        self.name, self._topics, self._seen = name, list(topics), seen
        self.failures: list[str] = []
        self.join_again = False
        self._consumer = Consumer({
            "bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "session.timeout.ms": 10000, "heartbeat.interval.ms": 1000, "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1000, "fetch.wait.max.ms": 200, "check.crcs": True,
            "socket.timeout.ms": 8000, "reconnect.backoff.max.ms": 500, "log_level": 0,
        })  # fmt: skip

    def run(self, stop: Callable[[], bool]) -> None:
        self._consumer.subscribe(self._topics)
        committed_at = time.monotonic()
        while not stop():
            if self.join_again:
                self.join_again = False
                self._consumer.subscribe(self._topics)
            for message in self._consumer.consume(500, 0.1):
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                if message.error() is None and topic is not None and partition is not None and offset is not None:
                    self.failures += self._seen.take((topic, partition), offset, message.value())
            if time.monotonic() - committed_at > 1:
                self._commit()
                committed_at = time.monotonic()
        self._consumer.close()

    def _commit(self) -> None:
        try:
            done = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # a rebalance, or the coordinator is gone: the next one
        for each in done or []:
            if each.error is None:
                at = each.topic, each.partition
                self._seen.committed[at] = each.offset


class Seen:
    """What the members of a group saw together."""

    def __init__(self) -> None:
        self.values: dict[At, dict[int, bytes]] = defaultdict(dict)
        self.committed: dict[At, int] = {}

    def take(self, at: At, offset: int, value: bytes | None) -> list[str]:
        before = self.values[at].setdefault(offset, value or b"")
        return [] if before == (value or b"") else [f"{at} {offset} was {before!r} and is {value!r}"]


class Traffic:
    """All clients of a cluster, each in a thread. Producers stop for every look at the logs; the group goes on."""

    def __init__(
        self, cluster: Cluster, producers: Sequence[NumberingProducer], group: str, topics: Sequence[str]
    ) -> None:
        self.cluster, self.producers, self.group = cluster, producers, group
        self.topics = topics
        self.seen = Seen()
        self.starts: dict[At, int] = {}  # below which records were deleted
        self.members: list[Client] = [Member(f"{group}-{each}", cluster, group, topics, self.seen) for each in range(2)]
        self._ended, self._held = threading.Event(), threading.Event()
        self._consuming: list[threading.Thread] = []
        self._producing: list[threading.Thread] = []

    def __enter__(self) -> Traffic:
        self._consuming = [self._thread(member, self._ended) for member in self.members]
        return self

    def __exit__(self, *_: object) -> None:
        self._held.set()
        self._ended.set()
        for thread in (*self._producing, *self._consuming):
            thread.join(PROGRESS_S + 30)

    @property
    def clients(self) -> list[Client]:
        return [*self.producers, *self.members]

    def produce(self) -> None:
        self._held.clear()
        self._producing = [self._thread(producer, self._held) for producer in self.producers]

    def hold(self) -> None:
        """Producers stop when all they sent is acknowledged."""
        self._held.set()
        for thread in self._producing:
            thread.join(PROGRESS_S + 30)
            assert not thread.is_alive(), f"{thread.name} does not end"
        self._producing = []
        self.check()

    def _thread(self, client: Client, stop: threading.Event) -> threading.Thread:
        def guarded() -> None:
            try:
                client.run(stop.is_set)
            except BaseException as error:
                client.failures.append(f"{client.name}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, name=client.name, daemon=True)
        thread.start()
        return thread

    def check(self) -> None:
        failures = [failure for client in self.clients for failure in client.failures]
        assert not failures, failures[:5]

    def partitions_added(self) -> None:
        """All brokers know of them. The group's leader may have asked one that did not, and does not ask again."""
        for member in self.members:
            member.join_again = True

    def wait_for_progress(self, more: int = 5) -> None:
        """Every producer has so many more acknowledged."""
        goals = {producer.name: producer.total + more for producer in self.producers}

        def written() -> bool:
            self.check()
            return all(producer.total >= goals[producer.name] for producer in self.producers)

        wait_until(written, PROGRESS_S, "progress of all producers")

    def committed(self) -> dict[At, int]:
        """The group's offsets, as its coordinator has them."""
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": self.group})
        try:
            asked = [TopicPartition(*at) for at in self.seen.committed]
            return {(each.topic, each.partition): each.offset for each in consumer.committed(asked, timeout=30)}
        finally:
            consumer.close()

    def forget_below(self, starts: Iterable[tuple[At, int]]) -> None:
        """What was deleted is looked at no more."""
        for at, start in starts:
            self.starts[at] = max(start, self.starts.get(at, 0))
            _forget(self.seen.values[at], start)
            for producer in self.producers:
                producer.forget_below(at, start)


def _forget(by_offset: dict[int, Any], start: int) -> None:
    for offset in [offset for offset in list(by_offset) if offset < start]:
        del by_offset[offset]
