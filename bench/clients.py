"""Loads with confluent-kafka, as its users write them: what a Python program sees of a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.processes import measured
from bench.rawload import Result, Target

SEED_RECORDS = 100_000
CHUNK = 10_000
START_SECONDS = 60
CREATION_SECONDS = 240.0  # Kafka needs a minute for 10,000 partitions


def address_of(target: Target) -> str:
    """For bootstrap.servers."""
    return f"{target.address[0]}:{target.address[1]}"


def _admin(target: Target) -> AdminClient:
    """A client that knows the controller: of a broker that is still electing one, librdkafka may wait forever."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        patience = int(CREATION_SECONDS * 1000)
        admin = AdminClient({"bootstrap.servers": address_of(target), "socket.timeout.ms": patience})
        if admin.list_topics(timeout=START_SECONDS).controller_id >= 0:
            return admin
        if time.monotonic() > deadline:
            raise RuntimeError(f"no controller after {START_SECONDS} s")
        time.sleep(0.2)


def create_topic(target: Target, name: str, partitions: int) -> None:
    """Create a topic and wait until all its partitions have leaders. KafkaException where the broker refuses."""
    admin = _admin(target)
    made = admin.create_topics(
        [NewTopic(name, partitions, 1)], operation_timeout=CREATION_SECONDS, request_timeout=CREATION_SECONDS
    )
    made[name].result(CREATION_SECONDS + 10)
    deadline = time.monotonic() + CREATION_SECONDS
    while True:
        topic = admin.list_topics(name, timeout=60).topics[name]
        if len(topic.partitions) == partitions and all(each.leader >= 0 for each in topic.partitions.values()):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} is not ready after {CREATION_SECONDS} s")
        time.sleep(0.1)


def produce(target: Target, topic: str, value: bytes, count: int, **settings: Any) -> None:
    """`count` records with one producer. RuntimeError if any was not taken."""
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    settings = {"bootstrap.servers": address_of(target), "queue.buffering.max.messages": 1_000_000} | settings
    producer = Producer(settings)
    for number in range(count):
        try:
            producer.produce(topic, value, partition=0, on_delivery=delivered)
        except BufferError:
            producer.poll(0.05)
            producer.produce(topic, value, partition=0, on_delivery=delivered)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    if failures or left:
        raise RuntimeError(f"{len(failures)} records were refused ({failures[:1]}), {left} are unanswered")


def consume(target: Target, topic: str, count: int) -> None:
    """The first `count` records of partition 0. RuntimeError when they do not come."""
    settings = {"bootstrap.servers": address_of(target), "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = 0
    while got < count:
        messages = consumer.consume(CHUNK, timeout=20)
        if not messages:
            raise RuntimeError(f"{got} of {count} records came")
        if error := next((each.error() for each in messages if each.error() is not None), None):
            raise RuntimeError(f"consuming: {error}")
        got += len(messages)
    consumer.close()


def _settings(acks: int) -> dict[str, Any]:
    return {"acks": acks, "linger.ms": 5}


def seed(acks: int, name: str) -> Callable[[Target], Iterator[Result]]:
    """100,000 records of 1 KB with one producer at these acks."""

    def measure(target: Target) -> Iterator[Result]:
        topic = f"seed-{name}"
        create_topic(target, topic, 1)
        with measured(target.pids) as figures:
            produce(target, topic, b"z" * 1024, SEED_RECORDS, **_settings(acks))
            figures["n"] = SEED_RECORDS
        yield f"seed-acks-{name}", figures

    return measure


def one_size(size: int, name: str, millions: float) -> Callable[[Target], Iterator[Result]]:
    """Records of one size: produced with acks=all, then consumed."""

    def measure(target: Target) -> Iterator[Result]:
        topic, count = f"client-{name}", max(CHUNK, int(millions * target.gigabytes * 1e6))
        create_topic(target, topic, 1)
        with measured(target.pids) as figures:
            produce(target, topic, b"v" * size, count, **_settings(-1))
            figures["n"] = count
        yield f"client-produce-{name}", figures
        with measured(target.pids) as figures:
            consume(target, topic, count)
            figures["n"] = count
        yield f"client-consume-{name}", figures

    return measure


MEASURES: dict[str, Callable[[Target], Iterator[Result]]] = {
    "seed-acks-0": seed(0, "0"),
    "seed-acks-1": seed(1, "1"),
    "seed-acks-all": seed(-1, "all"),
    "client-1k": one_size(1000, "1k", 0.3),
    "client-100b": one_size(100, "100b", 0.8),
}


def warm_up(target: Target) -> None:
    """A short pass, so that a JVM has compiled what the measures run."""
    topic = "client-warm"
    create_topic(target, topic, 1)
    produce(target, topic, b"w" * 500, 100_000, **_settings(1))
    consume(target, topic, 100_000)
