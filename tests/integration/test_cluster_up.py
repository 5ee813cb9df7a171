"""`pybroker cluster up` as a user runs it: a ZooKeeper of its own, three brokers, signals, deaths, a second run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import broker_environment, free_port, wait_until
from tests.support.clients import ConfluentKafka, Sent
from tests.support.zookeeper import ZooKeeperServer, class_path, need_zookeeper

pytestmark = pytest.mark.timeout(180)

READY = re.compile(r"^The cluster is ready: bootstrap\.servers=(\S+) \(data in (.*)\)$", re.MULTILINE)


class Up:
    """A running `cluster up`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.output = directory.parent / f"{directory.name}.out"
        command = [sys.executable, "-m", "pybroker", "cluster", "up", "--data-dir", str(directory), *arguments]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(directory.parent)
            )

    def text(self) -> str:
        return self.output.read_text()

    def ready(self) -> str:
        """The bootstrap address, when all are up."""
        found = wait_until(lambda: READY.search(self.text()) or self.process.poll() is not None, 90, "the cluster")
        assert found is not True, self.text()
        assert found[2] == str(self.directory)
        return str(found[1])

    def children(self) -> list[int]:
        """Process ids of all that run below it."""
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def broker(self, broker_id: int) -> int:
        """The process id of a broker."""
        at = re.compile(rf"server-{broker_id}\.properties")
        (found,) = (pid for pid in self.children() if at.search(Path(f"/proc/{pid}/cmdline").read_text()))
        return found


def environment(scratch: Path) -> dict[str, str]:
    """Has the command find the ZooKeeper that the tests use."""
    jars, home = class_path(), scratch / "zookeeper-home"
    if not jars.endswith("/*"):
        return broker_environment()
    home.mkdir(exist_ok=True)
    if not (home / "lib").exists():
        (home / "lib").symlink_to(jars.removesuffix("/*"))
    return broker_environment() | {"ZOOKEEPER_HOME": str(home)}


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def up(directory: Path, *arguments: str) -> Iterator[Up]:
    need_zookeeper()
    run = Up(directory, *arguments)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def base_port() -> int:
    """Of three free ports in a row."""
    while True:
        port = free_port()
        if all(map(_is_free, range(port, port + 3))):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_records_outlive_a_broker_and_a_restart(tmp_path: Path) -> None:
    client, port = ConfluentKafka(), base_port()
    arguments = ("--port", str(port), "--override", "default.replication.factor=3")
    with up(tmp_path / "c", *arguments) as run:
        address = run.ready()
        assert address == ",".join(f"127.0.0.1:{each}" for each in range(port, port + 3))
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("kept", 1, 3)])["kept"].result(30)
        first = [Sent(b"k", b"one")]
        client.produce(address, "kept", "none", first)

        os.kill(run.broker(2), signal.SIGKILL)
        wait_until(lambda: "broker 2 has ended with exit code -9: see " in run.text(), 10, "the news")
        assert str(tmp_path / "c" / "broker-2.log") in run.text()
        assert client.consume(address, "kept", 1) == first

        children = run.children()
        assert len(children) == 3  # two brokers, ZooKeeper
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 0
        assert not [pid for pid in children if alive(pid)]
    for broker_id in (1, 3):
        said = (tmp_path / "c" / f"broker-{broker_id}.log").read_text()
        assert "Shutting down" in said
        assert "Traceback" not in said
    assert "Other brokers lead what this one led" in (tmp_path / "c" / "broker-3.log").read_text()

    with up(tmp_path / "c", *arguments) as run:
        assert client.consume(run.ready(), "kept", 1) == first
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(60) == 0


def test_nothing_stays_when_it_is_killed(tmp_path: Path) -> None:
    with up(tmp_path / "c", "--port", str(base_port()), "--brokers", "2") as run:
        run.ready()
        children = run.children()
        assert len(children) == 3
        run.process.kill()
        run.process.wait()
        wait_until(lambda: not [pid for pid in children if alive(pid)], 10, "the end of all")


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    with up(tmp_path / "c", "--port", str(base_port()), "--brokers", "2") as run:
        run.ready()
        children = run.children()
        os.kill(run.broker(2), signal.SIGSTOP)  # it is the first to be stopped, and would be waited for
        run.process.send_signal(signal.SIGINT)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(10) in (128 + signal.SIGTERM, 128 + signal.SIGINT)
        assert not [pid for pid in children if alive(pid)]


def test_a_zookeeper_that_runs_is_used(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    at = f"{zookeeper.address}/up{tmp_path}"
    with up(tmp_path / "c", "--port", str(base_port()), "--brokers", "1", "--zookeeper", at) as run:
        run.ready()
        assert len(run.children()) == 1
        with up(tmp_path / "c", "--brokers", "1") as second:
            assert second.process.wait(30) == 1
            assert "another `cluster up` runs in" in second.text()
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 0


def test_a_start_that_fails_tells_why_and_leaves_nothing(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    at = f"{zookeeper.address}/up{tmp_path}"
    settings = ("--override", "num.partitions=many")
    with up(tmp_path / "c", "--port", str(base_port()), "--zookeeper", at, *settings) as run:
        assert run.process.wait(60) == 1
        assert "broker 1: exit code 1" in run.text()
        assert "num.partitions=many" in run.text()
