"""Consumer groups of real clients, each member a process of its own: they share the partitions, one leaves, one is
killed, a static one restarts; every record is consumed, and none below what was committed is consumed again."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import ROOT, BrokerProcess, broker_environment, wait_until
from tests.support.records import batch

PARTITIONS = 6
SESSION_MS = 1500
RUNS = [
    ("confluent-kafka", "range"),
    ("confluent-kafka", "roundrobin"),
    ("confluent-kafka", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "sticky"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
]


class Member:
    """A running consumer and what it has told."""

    def __init__(self, client: str, settings: dict[str, Any]) -> None:
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.member", client, json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=broker_environment() | {"PYTHONPATH": f"{ROOT / '.src'}:{ROOT}"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    @property
    def assigned(self) -> list[int]:
        return next((each["partitions"] for each in reversed(self.events) if each["event"] == "assigned"), [])

    def changes(self) -> int:
        """How often its assignment has changed."""
        return sum(each["event"] == "assigned" for each in self.events)

    def leave(self) -> None:
        self.process.terminate()
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Group:
    """Members of one group on a topic of their own."""

    def __init__(self, broker: BrokerProcess, client: str, assignor: str) -> None:
        self.broker, self.client = broker, client
        self.topic = f"{client}-{assignor}-{time.monotonic_ns()}"
        self.settings = {
            "address": broker.address, "topic": self.topic, "group": self.topic, "assignor": assignor,
            "session_ms": SESSION_MS, "instance": None,
        }  # fmt: skip
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.produced = [0] * PARTITIONS
        with broker.client() as wire:
            wire.create_topic(self.topic, partitions=PARTITIONS)

    def start(self, instance: str | None = None) -> Member:
        member = Member(self.client, self.settings | {"instance": instance})
        self.members.append(member)
        return member

    def produce(self, count: int = 20) -> None:
        with self.broker.client() as wire:
            for partition in range(PARTITIONS):
                answer = wire.produce(self.topic, batch([b"x"] * count), partition=partition)
                assert answer["ErrorCode"] == 0
                self.produced[partition] += count

    def settled(self) -> bool:
        """Every partition belongs to one member, and all have some."""
        shares = [member.assigned for member in self.members]
        return all(shares) and sorted(each for share in shares for each in share) == list(range(PARTITIONS))

    def consumed(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {partition: set() for partition in range(PARTITIONS)}
        for member in self.members + self.gone:
            for event in list(member.events):
                if event["event"] == "records":
                    found[event["partition"]].update(event["offsets"])
        return found

    def wait_settled(self, seconds: float = 20) -> None:
        wait_until(self.settled, seconds, f"an assignment of all partitions; {[m.assigned for m in self.members]}")

    def wait_consumed(self) -> None:
        wait_until(
            lambda: all(len(found) == self.produced[partition] for partition, found in self.consumed().items()),
            20, "the consumption of all records",
        )  # fmt: skip

    def remove(self, member: Member) -> None:
        self.members.remove(member)
        self.gone.append(member)

    def check_commits(self) -> None:
        """Nothing that was committed is consumed again later."""
        events = sorted(
            (event for member in self.members + self.gone for event in member.events), key=lambda each: each["at"]
        )
        committed = [0] * PARTITIONS
        for event in events:
            if event["event"] == "committed":
                committed[event["partition"]] = max(committed[event["partition"]], event["offset"])
            elif event["event"] == "records":
                assert min(event["offsets"]) >= committed[event["partition"]], event

    def close(self) -> None:
        for member in self.members + self.gone:
            if member.process.poll() is None:
                member.kill()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.min.session.timeout.ms": 1000, "offsets.topic.num.partitions": 5}
    with BrokerProcess(Path(tmp_path_factory.mktemp("groups")) / "data", settings) as running:
        yield running


@pytest.fixture
def groups(broker: BrokerProcess) -> Iterator[Any]:
    made: list[Group] = []

    def make(client: str, assignor: str) -> Group:
        made.append(Group(broker, client, assignor))
        return made[-1]

    yield make
    for group in made:
        group.close()


@pytest.mark.parametrize(("client", "assignor"), RUNS)
def test_members_come_and_go(groups: Any, client: str, assignor: str) -> None:
    group: Group = groups(client, assignor)
    group.produce()
    first, second, third = group.start(), group.start(), group.start()
    group.wait_settled()
    group.wait_consumed()

    group.remove(second)
    second.leave()
    group.wait_settled()
    group.produce()
    group.wait_consumed()

    group.remove(third)
    third.kill()
    group.wait_settled()
    group.produce()
    group.wait_consumed()
    group.check_commits()

    group.remove(first)
    first.leave()


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_a_static_member_restarts_without_a_rebalance(groups: Any, client: str) -> None:
    group: Group = groups(client, "range")
    group.settings["session_ms"] = 10_000
    group.produce()
    stays = group.start("one")
    restarts = group.start("two")
    group.wait_settled()
    group.wait_consumed()
    before, changes = restarts.assigned, stays.changes()

    group.remove(restarts)
    restarts.kill()
    again = group.start("two")
    group.produce()
    group.wait_consumed()
    assert again.assigned == before
    assert stays.changes() == changes
    group.check_commits()


def lasting_port() -> int:
    """A free port that no outgoing connection gets: clients that look for a dead broker would take it otherwise."""
    for port in random.sample(range(15_000, 30_000), 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no free port")


def test_groups_survive_a_crash_of_the_broker(tmp_path: Path) -> None:
    settings = {"group.min.session.timeout.ms": 1000, "offsets.topic.num.partitions": 5}
    with BrokerProcess(tmp_path / "data", settings, port=lasting_port()) as broker:
        group = Group(broker, "confluent-kafka", "range")
        group.settings["session_ms"] = 10_000
        try:
            group.produce()
            group.start()
            group.start()
            group.wait_settled()
            group.wait_consumed()
            broker.restart(kill=True)
            group.produce()
            group.wait_consumed()
            group.check_commits()
            with broker.client() as wire:
                described = wire.call("DescribeGroups", 5, {"Groups": [group.topic]})["Groups"][0]
                assert (described["GroupState"], len(described["Members"])) == ("Stable", 2)
        finally:
            group.close()
