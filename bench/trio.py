"""Three brokers of one kind under one ZooKeeper: how they are started on empty folders, asked, and ended."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

from kazoo.client import KazooClient

from bench import kafka, wire
from bench.systems import ZooKeeper, environment, free_port
from bench.wire import Address, Connection

logging.getLogger("kazoo").setLevel(logging.ERROR)  # it tells of its own end

COUNT = 3
PATIENCE_SECONDS = 300.0
PAUSE_SECONDS = 0.02  # between two questions
SESSION_MS = 6_000
Topics = dict[str, list[list[int]] | int]  # the replicas of each partition, or how many partitions
SETTINGS: dict[str, object] = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "zookeeper.session.timeout.ms": SESSION_MS,
    "auto.leader.rebalance.enable": "false",  # leaders stay where a measure has put them
    "auto.create.topics.enable": "false",
}


def until(holds: Callable[[], bool], what: str) -> None:
    """Returns when it holds. RuntimeError when it does not within PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(PAUSE_SECONDS)


class Broker:
    """One of the three, on a port and a folder of its own."""

    def __init__(self, kind: str, folder: Path, broker_id: int, zookeeper_port: int) -> None:
        self.kind, self.folder, self.broker_id = kind, folder, broker_id
        self.address: Address = ("127.0.0.1", free_port())
        self.process: subprocess.Popen[bytes] | None = None
        self._zookeeper_port = zookeeper_port

    def _command(self) -> list[str]:
        address = f"PLAINTEXT://127.0.0.1:{self.address[1]}"
        configuration = kafka.properties(self.folder, SETTINGS | {
            "broker.id": self.broker_id,
            "listeners": address,
            "advertised.listeners": address,
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "log.dirs": self.folder / "data",
        })  # fmt: skip
        if self.kind == "kafka":
            return kafka.java("kafka.Kafka", configuration, heap=kafka.HEAP)
        return [sys.executable, "-m", "pybroker", "start", str(configuration)]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self) -> None:
        """Start the process, on what its folder holds."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        with (self.folder / "out").open("ab") as output:
            self.process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder,
                env=environment(),
            )  # fmt: skip

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            try:
                self.process.wait(PATIENCE_SECONDS)
            finally:
                self.process.kill()
            self.process = None

    def metadata(self, *topics: str) -> wire.Cluster:
        """What it says of these topics, of all if none are named. OSError and EOFError while it can't be asked."""
        connection = Connection(self.address)
        try:
            return wire.Cluster.of(connection.ask(wire.metadata(*topics) if topics else wire.all_metadata()))
        finally:
            connection.close()


class Trio:
    """The three of one kind, with ids 1 to 3, and a client of their ZooKeeper."""

    def __init__(self, kind: str, work: Path) -> None:
        self.kind = kind
        self.folder = work / f"three-{kind}"
        self.zookeeper = ZooKeeper(self.folder)
        self.brokers = {
            number: Broker(kind, self.folder / str(number), number, self.zookeeper.port)
            for number in range(1, COUNT + 1)
        }
        self._client: Any = None

    def start(self) -> None:
        """On empty folders, until `all_up`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.zookeeper.start()
        self._client = KazooClient(f"127.0.0.1:{self.zookeeper.port}", timeout=30)
        self._client.start(timeout=30)
        for broker in self.brokers.values():
            broker.spawn()
        self.all_up()

    def all_up(self) -> None:
        """Returns when each has heard of all three and of the controller."""
        until(self._complete, f"three brokers in {self.folder}")

    def _complete(self) -> bool:
        for broker in self.brokers.values():
            if broker.process is not None and broker.process.poll() is not None:
                raise RuntimeError(f"a broker ended: {(broker.folder / 'out').read_text()[-2000:]}")
            with suppress(OSError, EOFError):
                found = broker.metadata("none")
                if len(found.brokers) == COUNT and found.controller > 0:
                    continue
            return False
        return True

    def stop(self) -> None:
        """End all at once: their data is thrown away."""
        if self._client is not None:
            self._client.stop()
            self._client.close()
            self._client = None
        for broker in self.brokers.values():
            broker.end()
        self.zookeeper.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """Of those that run."""
        return [broker.pid for broker in self.brokers.values() if broker.process is not None]

    def running(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.process is not None]

    def controller(self) -> int:
        return self.running()[0].metadata("none").controller

    @contextmanager
    def registration(self, broker_id: int, present: bool) -> Iterator[Event]:
        """An event that is set when the broker's node in ZooKeeper is there, or no more."""
        path, moved = f"/brokers/ids/{broker_id}", Event()

        def look(_event: object) -> None:
            if (self._client.exists(path, watch=look) is not None) == present:
                moved.set()

        look(None)
        yield moved

    def create(self, topics: Topics) -> None:
        """Create them with three replicas, and wait until all brokers know a leader of each partition."""
        connection = Connection(self.brokers[self.controller()].address)
        connection.socket.settimeout(PATIENCE_SECONDS)
        wire.check_created(connection.ask(wire.create_topics(topics, COUNT, int(PATIENCE_SECONDS * 1000))))
        connection.close()
        self.wait_until_led(topics)

    def wait_until_led(self, topics: Topics) -> None:
        """Until all running brokers say of every partition that a running broker leads it."""
        wanted = {
            (name, index)
            for name, given in topics.items()
            for index in range(given if isinstance(given, int) else len(given))
        }
        alive = {broker.broker_id for broker in self.running()}

        def led(found: wire.Cluster) -> bool:
            return all(found.partitions.get(each, (-1, ()))[0] in alive for each in wanted)

        self.all_say(led, f"leaders of {len(wanted)} partitions")

    def all_say(self, holds: Callable[[wire.Cluster], bool], what: str) -> None:
        """Until it holds of the metadata of all topics, one running broker after the other."""
        for broker in self.running():
            until(lambda broker=broker: holds(broker.metadata()), f"broker {broker.broker_id}: {what}")  # type: ignore[misc]

    def wait_for_isr(self, topic: str, isr: set[int], asked: int) -> None:
        """Until broker `asked` says that partition 0 of the topic has these in sync."""

        def same() -> bool:
            return set(self.brokers[asked].metadata(topic).partitions[topic, 0][1]) == isr

        until(same, f"{topic}-0 has {sorted(isr)} in sync")

    def elect_preferred(self) -> None:
        """All replicas in sync, and the first of each partition leads it."""
        self.all_up()
        self.all_say(lambda found: all(len(isr) == COUNT for _, isr in found.partitions.values()), "all in sync")
        connection = Connection(self.brokers[self.controller()].address)
        connection.ask(wire.elect_preferred(int(PATIENCE_SECONDS * 1000)))
        connection.close()
