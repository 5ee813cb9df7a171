"""Consumer groups of real clients under test: each member a process of its own that tells what it sees.

What a member is started with and what it writes is said in tests/support/member.py; members in Java and Go
(tests/clients/) do the same.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.broker import ROOT, BrokerProcess, broker_environment, wait_until
from tests.support.records import batch

PARTITIONS = 6
SESSION_MS = 1500


class Member:
    """A running consumer and what it has told; `program` is what it runs, without its settings."""

    def __init__(self, program: Sequence[str], settings: dict[str, Any]) -> None:
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [*program, json.dumps(settings)],
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
    """Members of one group on a topic of their own; `program` runs a member where it is not one of Python's clients."""

    def __init__(
        self, broker: BrokerProcess, client: str, assignor: str, program: Sequence[str] | None = None
    ) -> None:
        self.broker = broker
        self.program = program or [sys.executable, "-m", "tests.support.member", client]
        self.topic = f"{client}-{assignor}-{time.monotonic_ns()}"
        self.settings = {
            "address": broker.address, "topic": self.topic, "group": self.topic, "assignor": assignor,
            "session_ms": SESSION_MS, "instance": None, "protocol": "classic",
        }  # fmt: skip
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.produced = [0] * PARTITIONS
        with broker.client() as wire:
            wire.create_topic(self.topic, partitions=PARTITIONS)

    def start(self, instance: str | None = None) -> Member:
        member = Member(self.program, self.settings | {"instance": instance})
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

    def wait_settled(self, seconds: float = 30) -> None:
        wait_until(self.settled, seconds, f"an assignment of all partitions; {[m.assigned for m in self.members]}")

    def wait_consumed(self) -> None:
        wait_until(
            lambda: all(len(found) == self.produced[partition] for partition, found in self.consumed().items()),
            30, "the consumption of all records",
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


@contextmanager
def making_groups(broker: BrokerProcess) -> Iterator[Callable[..., Group]]:
    """A maker of groups of this broker; their members end with the context."""
    made: list[Group] = []

    def make(client: str, assignor: str, program: Sequence[str] | None = None, **settings: Any) -> Group:
        made.append(Group(broker, client, assignor, program))
        made[-1].settings.update(settings)
        return made[-1]

    try:
        yield make
    finally:
        for group in made:
            group.close()


def come_and_go(group: Group) -> None:
    """Three members join, one leaves, one is killed; whoever is left consumes all, and nothing committed again."""
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


def restart_static(group: Group, end: Callable[[Member], None] = Member.kill) -> None:
    """One of two static members ends and starts again: it has its partitions back, and the other notices nothing."""
    group.produce()
    stays = group.start("one")
    restarts = group.start("two")
    group.wait_settled()
    group.wait_consumed()
    before, changes = restarts.assigned, stays.changes()

    group.remove(restarts)
    end(restarts)
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
