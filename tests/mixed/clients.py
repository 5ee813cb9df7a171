"""What clients do in mixed clusters: numbered records in, all records out, by librdkafka and by Java."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support.cluster import Cluster
from tests.support.java import run_tool

Acknowledged = dict[tuple[int, int], bytes]  # (partition, offset) → value


def place(message: Any) -> tuple[int, int]:
    return message.partition(), message.offset()


def produce(cluster: Cluster, topic: str, prefix: str, count: int = 40, seconds: float = 60) -> Acknowledged:
    """Idempotent, acks=all, over all partitions of the topic in turn; all must be acknowledged in that time."""
    acknowledged: Acknowledged = {}
    failures: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged[place(message)] = message.value()
        else:
            failures.append(error)

    producer = Producer({
        "bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 7,
        "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 500,
    })  # fmt: skip
    partitions = len(cluster.assignment(topic))
    for number in range(count):
        producer.produce(topic, f"{prefix}-{number}".encode(), partition=number % partitions, on_delivery=delivered)
    assert producer.flush(seconds) == 0 and not failures, failures
    return acknowledged


def consume(bootstrap: str, topic: str, partitions: Sequence[int], seconds: float = 60) -> Acknowledged:
    """Everything up to the high watermarks, read over one broker's address."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "error",
        "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
    found: Acknowledged = {}
    ended: set[int] = set()
    deadline = time.monotonic() + seconds
    while len(ended) < len(partitions):
        assert time.monotonic() < deadline, f"no end of {topic}: {ended}"
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(place(message)[0])
        else:
            found[place(message)] = message.value() or b""
    consumer.close()
    return found


def java_produce(address: str, topic: str, count: int) -> None:
    """Numbered records without keys over one broker's address, acks=all and idempotent."""
    run_tool(
        "3.9.2", "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size", "50",
        "--throughput", "-1", "--producer-props", f"bootstrap.servers={address}", "acks=all",
    )  # fmt: skip


def java_consume(address: str, topic: str, count: int) -> list[str]:
    """The values of `count` records, read as a new group over one broker's address."""
    done = run_tool(
        "3.9.2", "ConsoleConsumer", "--bootstrap-server", address, "--topic", topic, "--from-beginning",
        "--max-messages", str(count), "--timeout-ms", "30000",
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if line and not line.startswith(("Processed", "["))]
