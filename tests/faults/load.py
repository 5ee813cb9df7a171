"""Load of ordinary clients (confluent-kafka) on a cluster, and how long they waited for each record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

#: Of clients that are to notice a move of leadership soon. librdkafka's own: 100, 1000, 100, 10000, 100 and 30000 ms.
QUICK = {
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "request.timeout.ms": 5000,
    "log_level": 2,  # lost connections are what the tests make
}
ROUND_SECONDS = 0.5  # each partition gets a record this often, evenly spread: librdkafka sends one partition a request


class Waits:
    """How long each record took: the time (time.monotonic()) when it came, and the seconds since it was sent."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float]] = []
        self.partitions: dict[int, int] = {}
        """How many came, by partition."""

    def note(self, partition: int, value: bytes) -> None:
        now = time.monotonic()
        self.found.append((now, now - float(value.split(b":")[1])))
        self.partitions[partition] = self.partitions.get(partition, 0) + 1

    def longest(self, since: float, until: float) -> float:
        """The longest of those that ended in this span, 0 for none."""
        return max((seconds for at, seconds in self.found if since < at <= until), default=0.0)


class IdempotentLoad:
    """acks=all, idempotent, a record to every partition each ROUND_SECONDS, until the context is left or end().

    `acknowledged` has the value by (partition, offset), `errors` what was not delivered."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.waits = Waits()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.errors: list[KafkaError] = []
        self.sent = 0
        self._topic, self._partitions = topic, partitions
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0, **QUICK}
        self._producer = Producer(settings)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._failure: BaseException | None = None

    def __enter__(self) -> IdempotentLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Sends no more; returns when all is acknowledged or given up."""
        self._end.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            due = time.monotonic()
            while not self._end.is_set():
                partition = self.sent % self._partitions
                value = b"%d:%f" % (self.sent, time.monotonic())
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._told)
                self.sent += 1
                due += ROUND_SECONDS / self._partitions
                self._producer.poll(max(0.0, due - time.monotonic()))
            assert self._producer.flush(60) == 0, "records were neither delivered nor given up"
        except BaseException as error:
            self._failure = error

    def _told(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.errors.append(error)
            return
        self.waits.note(message.partition(), message.value())
        self.acknowledged[message.partition(), message.offset()] = message.value()


class GroupLoad:
    """Members of one consumer group that read the topic and commit. `values` by (partition, offset)."""

    def __init__(self, bootstrap: str, topic: str, group: str, members: int = 2) -> None:
        self.waits = Waits()
        self.values: dict[tuple[int, int], bytes] = {}
        self._topic = topic
        self._settings = {
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500, "session.timeout.ms": 10_000, "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50, **QUICK,
        }  # fmt: skip
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"member-{each}") for each in range(members)]
        self._failures: list[BaseException] = []

    def __enter__(self) -> GroupLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe([self._topic])
            while not self._end.is_set():
                for message in consumer.consume(500, 0.05):
                    if message.error() is None:
                        self.waits.note(message.partition(), message.value())
                        self.values[message.partition(), message.offset()] = message.value()
                    elif not message.error().retriable():
                        raise KafkaException(message.error())
        except BaseException as error:
            self._failures.append(error)
        finally:
            consumer.close()

    def has_all(self, load: IdempotentLoad) -> Callable[[], bool]:
        """A condition: everything that was acknowledged has been read."""

        def condition() -> bool:
            if self._failures:
                raise self._failures[0]
            return all(at in self.values for at in load.acknowledged)

        return condition


def check(load: IdempotentLoad, group: GroupLoad) -> None:
    """All that was sent was acknowledged, was read as it was sent, and is there once."""
    assert load.errors == []
    assert all(group.values[at] == value for at, value in load.acknowledged.items())
    read: Sequence[bytes] = list(group.values.values())
    assert len(read) == len(set(read)) == load.sent, "a record is missing, or is there twice"
