"""docs/migrate.md, done: its commands, in their order, on a cluster of two Apache Kafka brokers and then two of ours,
and back, under an idempotent producer and a consumer group. With --long."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.broker import ROOT, broker_environment, free_port, wait_until
from tests.support.java import jars, java, need_java
from tests.support.kafka import KafkaBroker
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(900)

GUIDE = ROOT / "docs" / "migrate.md"
TOPIC, PARTITIONS = "migrating", 6
OLD, NEW = (1, 2), (3, 4)
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election.sh": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-broker-api-versions.sh": "kafka.admin.BrokerApiVersionsCommand",
}
LONGEST_PAUSE_SECONDS = 15


class Block(NamedTuple):
    """A code block of the guide, and on which machines it is to be run ("new", "old"; "" for the administrator's)."""

    where: str
    text: str


def blocks() -> list[Block]:
    """Those that are to be run, without those that only name things."""
    found = []
    for text in re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        if re.match(r"# .*what (your cluster|it) is like", text):
            continue
        where = re.match(r"# on each (old|new) machine", text)
        found.append(Block(where[1] if where else "", text))
    return found


class Machines:
    """The brokers' machines, each a directory, and the administrator's."""

    def __init__(self, work: Path, zookeeper: str) -> None:
        self.work, self.zookeeper = work, zookeeper
        settings = {
            "offsets.topic.replication.factor": "2",
            "group.initial.rebalance.delay.ms": "0",
            "zookeeper.session.timeout.ms": "18000",
        }
        self.kafkas = {
            each: KafkaBroker(work / f"m{each}", work / f"m{each}" / "data", zookeeper, each, settings) for each in OLD
        }
        self.ports = {each: free_port() for each in NEW}
        self.bin = work / "bin"
        self._make_commands()

    def _make_commands(self) -> None:
        """Kafka's scripts and `pybroker`, as an installation has them in its PATH."""
        self.bin.mkdir()
        class_path = f"{jars('3.9.2')}/*"
        commands = {name: f'exec {shlex.join(java(class_path, main))} "$@"' for name, main in TOOLS.items()}
        commands["pybroker"] = f'exec {shlex.quote(sys.executable)} -m pybroker "$@"'
        commands["kafka-server-stop.sh"] = "kill -TERM $KAFKA_PID"
        commands["kafka-server-start.sh"] = "touch start-asked"
        for name, text in commands.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.bin / name).chmod(0o755)

    def bootstrap(self, *broker_ids: int) -> str:
        return ",".join(
            self.kafkas[each].address if each in OLD else f"127.0.0.1:{self.ports[each]}" for each in broker_ids
        )

    def environment(self, broker_id: int | None) -> dict[str, str]:
        found = broker_environment() | {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "ZOOKEEPER": self.zookeeper,
            "OLD": self.bootstrap(*OLD),
            "NEW": self.bootstrap(*NEW),
            "OLD_IDS": ",".join(map(str, OLD)),
            "NEW_IDS": ",".join(map(str, NEW)),
        }
        if broker_id in OLD:
            process = self.kafkas[broker_id].process
            found |= {"KAFKA_PID": "" if process is None else str(process.pid)}
        elif broker_id is not None:
            found |= {"ID": str(broker_id), "ADDRESS": self.bootstrap(broker_id), "DATA": "data"}
        return found

    def run(self, block: Block) -> None:
        for broker_id in {"old": OLD, "new": NEW, "": (None,)}[block.where]:
            folder = self.work / ("admin" if broker_id is None else f"m{broker_id}")
            folder.mkdir(exist_ok=True)
            with (folder / "commands.out").open("ab") as output:
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", block.text], cwd=folder, env=self.environment(broker_id),
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=300,
                )  # fmt: skip
            assert done.returncode == 0, f"{block.text}\n{(folder / 'commands.out').read_text()[-3000:]}"
            if broker_id in OLD:
                self._follow(self.kafkas[broker_id], folder)

    def _follow(self, kafka: KafkaBroker, folder: Path) -> None:
        """What the scripts of Kafka's start and stop were asked for, done."""
        asked = folder / "start-asked"
        if asked.exists():
            asked.unlink()
            kafka.start()
        elif kafka.process is not None:
            kafka.stop()

    def end(self) -> None:
        for kafka in self.kafkas.values():
            kafka.kill()
        for broker_id in NEW:
            pid = self.work / f"m{broker_id}" / "pybroker.pid"
            if pid.exists():
                try:
                    os.kill(int(pid.read_text()), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def log_of(self, broker_id: int) -> str:
        return (self.work / f"m{broker_id}" / "pybroker.log").read_text()


class Clients:
    """An idempotent producer of numbers with acks=all, and a group of one that reads them; both note their longest
    pause, in seconds, and at what step it was."""

    def __init__(self, bootstrap: str) -> None:
        self.step = ""
        self.acknowledged: set[int] = set()
        self.read: list[int] = []
        self.pauses: dict[str, tuple[float, str]] = {"producer": (0, ""), "consumer": (0, "")}
        self._last = dict.fromkeys(self.pauses, 0.0)
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5,
            "topic.metadata.refresh.interval.ms": 2000,
        })  # fmt: skip
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 2000,
        })  # fmt: skip
        self._producing, self._consuming = Event(), Event()
        self._threads = [Thread(target=self._produce), Thread(target=self._consume)]
        self.failures: list[Any] = []

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: len(self.read) > 100, 60, "the first records")
        return self

    def __exit__(self, *_: object) -> None:
        self._producing.set()
        self._threads[0].join(120)
        deadline = time.monotonic() + 60
        while not self.acknowledged <= set(self.read) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._consuming.set()
        self._threads[1].join(60)

    def _happened(self, who: str) -> None:
        now = time.monotonic()
        if self._last[who] and now - self._last[who] > self.pauses[who][0]:
            self.pauses[who] = now - self._last[who], self.step
        self._last[who] = now

    def _produce(self) -> None:
        number = 0
        while not self._producing.is_set():
            self._producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.005)
        if self._producer.flush(100):
            self.failures.append("records that were never acknowledged")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged.add(int(message.value()))
            self._happened("producer")

    def _consume(self) -> None:
        self._consumer.subscribe([TOPIC])
        while not self._consuming.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.read.append(int(message.value() or b"-1"))
                self._happened("consumer")
            elif error.fatal():
                self.failures.append(error)
        try:
            self._consumer.commit(asynchronous=False)
        except Exception as error:  # nothing read since the last commit is no failure
            if getattr(error.args[0], "code", lambda: None)() != KafkaError._NO_OFFSET:
                self.failures.append(error)
        self._consumer.close()


@pytest.fixture
def machines(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Machines]:
    need_java("3.9.2")
    made = Machines(tmp_path, f"{zookeeper.address}/migration{tmp_path}")
    try:
        for kafka in made.kafkas.values():
            kafka.launch()
        for kafka in made.kafkas.values():
            kafka.wait_ready()
        yield made
    finally:
        made.end()


def replicas(bootstrap: str) -> dict[str, set[int]]:
    """Of every topic, over all its partitions."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics
    return {name: {each for one in topic.partitions.values() for each in one.replicas} for name, topic in found.items()}


def everything(bootstrap: str) -> list[int]:
    """All records there are now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    every = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
    count = sum(consumer.get_watermark_offsets(each, 20)[1] for each in every)
    consumer.assign(every)
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [int(message.value() or b"-1") for message in consumer.consume(1000, 0.5) if not message.error()]
    consumer.close()
    assert len(found) >= count
    return found


def test_the_guide(machines: Machines, long_run: bool, record_property: Any) -> None:
    if not long_run:
        pytest.skip("with --long")
    everyone = machines.bootstrap(*OLD, *NEW)
    admin = AdminClient({"bootstrap.servers": machines.bootstrap(*OLD)})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])[TOPIC].result(30)
    with ExitStack() as stack:
        clients = stack.enter_context(Clients(everyone))
        there = blocks()
        last = max(index for index, block in enumerate(there) if block.where == "old" and "stop" in block.text)
        for index, block in enumerate(there):
            clients.step = block.text.splitlines()[-1]
            read = len(clients.read)
            machines.run(block)
            wait_until(lambda read=read: len(clients.read) > read, 60, f"records after {block.text}")
            if index == last:
                where = replicas(machines.bootstrap(*NEW))
                assert all(each <= set(NEW) for each in where.values()), where
                for broker_id in NEW:
                    assert "Traceback" not in machines.log_of(broker_id)
        assert all(each <= set(OLD) for each in replicas(machines.bootstrap(*OLD)).values())
    assert not clients.failures
    written = everything(machines.bootstrap(*OLD))
    assert len(clients.acknowledged) > 1000
    assert clients.acknowledged <= set(clients.read), "a record that was acknowledged is lost"
    assert sorted(written) == sorted(set(written)) and clients.acknowledged <= set(written)
    for broker_id in NEW:
        assert "Traceback" not in machines.log_of(broker_id)
    for who, (pause, step) in clients.pauses.items():
        print(f"the longest pause of the {who}: {pause:.1f} s, at: {step}")
        record_property(f"longest pause of the {who}", f"{pause:.1f} s at {step}")
        assert pause < LONGEST_PAUSE_SECONDS, (who, pause, step)


def test_the_guide_has_blocks_for_all() -> None:
    """So that the test does not pass by finding nothing."""
    there = blocks()
    assert len(there) >= 11
    assert {block.where for block in there} == {"", "old", "new"}
    named = " ".join(block.text for block in there)
    assert all(command in named for command in (*TOOLS, "kafka-server-stop.sh", "kafka-server-start.sh", "pybroker"))
