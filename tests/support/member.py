"""A consumer in a process of its own: `python -m tests.support.member CLIENT SETTINGS` with SETTINGS as JSON:
address, topic, group, assignor, session_ms, instance (group.instance.id or null), protocol (classic or consumer).

It commits after every batch before it asks for the next, and writes what happens to its standard output, one JSON
object a line with the time in seconds: {"event": "assigned", "partitions": [..]} whenever its assignment changed,
{"event": "records", "partition": p, "offsets": [..]}, {"event": "committed", "partition": p, "offset": o}.
SIGTERM makes it leave the group and end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

stopping = False


def tell(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "at": time.time()} | facts), flush=True)


def tell_batch(offsets: Mapping[int, list[int]]) -> None:
    for partition, each in offsets.items():
        tell("records", partition=partition, offsets=each)


def tell_committed(offsets: Mapping[int, list[int]]) -> None:
    for partition, each in offsets.items():
        tell("committed", partition=partition, offset=each[-1] + 1)


def by_partition(records: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition, offset in records:
        found.setdefault(partition, []).append(offset)
    return found


class Assignment:
    """Tells of changes only."""

    def __init__(self) -> None:
        self._told: list[int] | None = None

    def now(self, partitions: Iterable[int]) -> None:
        present = sorted(partitions)
        if present != self._told:
            self._told = present
            tell("assigned", partitions=present)


def confluent(settings: dict[str, Any]) -> None:
    from confluent_kafka import Consumer, KafkaException

    options = {
        "bootstrap.servers": settings["address"],
        "group.id": settings["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": settings["session_ms"],
        "heartbeat.interval.ms": settings["session_ms"] // 10,
    }
    if settings["protocol"] == "consumer":
        options = {
            key: value for key, value in options.items() if key not in ("session.timeout.ms", "heartbeat.interval.ms")
        }
        options |= {"group.protocol": "consumer", "group.remote.assignor": settings["assignor"]}
    else:
        options["partition.assignment.strategy"] = settings["assignor"]
    if settings["instance"]:
        options["group.instance.id"] = settings["instance"]
    consumer = Consumer(options)
    consumer.subscribe([settings["topic"]])
    assignment = Assignment()
    while not stopping:
        messages = [each for each in consumer.consume(100, 0.05) if each.error() is None]
        assignment.now(each.partition for each in consumer.assignment())
        offsets = by_partition((each.partition(), each.offset()) for each in messages)
        tell_batch(offsets)
        if offsets:
            try:
                # A partition that was revoked while the batch was collected is not among what is committed.
                for each in consumer.commit(asynchronous=False):
                    if each.error is None and each.offset > 0:
                        tell("committed", partition=each.partition, offset=each.offset)
            except KafkaException as error:
                tell("commit failed", why=str(error))
    consumer.close()


def kafka_python(settings: dict[str, Any]) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor,
    }  # fmt: skip
    options = {"group_instance_id": settings["instance"]} if settings["instance"] else {}
    consumer = KafkaConsumer(
        settings["topic"],
        bootstrap_servers=settings["address"],
        group_id=settings["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["session_ms"] // 10,
        partition_assignment_strategy=[assignors[settings["assignor"]]],
        **options,
    )
    assignment = Assignment()
    while not stopping:
        # A leader whose poll ends while it joins again because of new metadata forgets that it was joining
        # (kafka-python 3.0): so no short polls.
        batch = consumer.poll(2000, max_records=100)
        assignment.now(each.partition for each in consumer.assignment())
        offsets = by_partition((each.partition, each.offset) for messages in batch.values() for each in messages)
        tell_batch(offsets)
        if offsets:
            try:
                consumer.commit()
                tell_committed(offsets)
            except KafkaError as error:
                tell("commit failed", why=str(error))
    consumer.close()


async def aiokafka(settings: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor,
    }  # fmt: skip
    options = {"group_instance_id": settings["instance"]} if settings["instance"] else {}
    consumer = AIOKafkaConsumer(
        settings["topic"],
        bootstrap_servers=settings["address"],
        group_id=settings["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["session_ms"] // 10,
        partition_assignment_strategy=[assignors[settings["assignor"]]],
        **options,
    )
    await consumer.start()
    assignment = Assignment()
    while not stopping:
        batch = await consumer.getmany(timeout_ms=50, max_records=100)
        assignment.now(each.partition for each in consumer.assignment())
        offsets = by_partition((each.partition, each.offset) for messages in batch.values() for each in messages)
        tell_batch(offsets)
        if offsets:
            try:
                await consumer.commit()
                tell_committed(offsets)
            except KafkaError as error:
                tell("commit failed", why=str(error))
    await consumer.stop()


def stop(*_: object) -> None:
    global stopping
    stopping = True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    name, wanted = sys.argv[1], json.loads(sys.argv[2])
    if name == "confluent-kafka":
        confluent(wanted)
    elif name == "kafka-python":
        kafka_python(wanted)
    else:
        asyncio.run(aiokafka(wanted))
