"""A cluster on this machine: its ZooKeeper, if it has one of its own, and its brokers, each a process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping

from pybroker.broker.cluster import zookeeper
from pybroker.broker.cluster.plan import HOST, Plan
from pybroker.broker.cluster.process import ChildProcess, StartFailed
from pybroker.broker.health_command import Unreachable, examine

START_SECONDS = 120.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.05


def start_command(plan: Plan, broker_id: int) -> list[str]:
    """Runs a broker of a plan whose files are written."""
    files = [str(plan.server_file(broker_id)), "--ready-file", str(plan.ready_file(broker_id))]
    return [sys.executable, "-m", "pybroker", "start", *files]


class BrokerChild(ChildProcess):
    """A broker of a plan."""

    def __init__(self, plan: Plan, broker_id: int, *, bound: bool) -> None:
        super().__init__(plan.log(broker_id), bound=bound)
        self.plan, self.broker_id = plan, broker_id

    def begin(self) -> None:
        self.plan.ready_file(self.broker_id).unlink(missing_ok=True)
        self.spawn(start_command(self.plan, self.broker_id), cwd=self.plan.directory)

    @property
    def serving(self) -> bool:
        return self.plan.ready_file(self.broker_id).exists()


class ZooKeeperChild(ChildProcess):
    """The ZooKeeper of a plan. Raises NoZooKeeper."""

    def __init__(self, plan: Plan, *, bound: bool) -> None:
        super().__init__(plan.directory / "zookeeper.log", bound=bound)
        self.plan, self.classes = plan, zookeeper.class_path()

    def begin(self) -> None:
        self.spawn(zookeeper.command(self.classes, self.plan.zoo_cfg), cwd=self.plan.directory)

    @property
    def serving(self) -> bool:
        return zookeeper.ask(HOST, self.plan.zookeeper_port, "srvr") is not None


class LocalCluster:
    """The processes of a plan. `up` and `down` are iterators that pause a little wherever they wait: who runs them can
    look for signals between their steps."""

    def __init__(self, plan: Plan, *, bound: bool = True) -> None:
        """Raises NoZooKeeper."""
        self.plan = plan
        self.zookeeper: ChildProcess | None = ZooKeeperChild(plan, bound=bound) if plan.zookeeper_port else None
        self.brokers: Mapping[int, ChildProcess] = {each: BrokerChild(plan, each, bound=bound) for each in plan.ports}

    def children(self) -> dict[str, ChildProcess]:
        """All by their names, in the order in which they are stopped."""
        named = {f"broker {each}": self.brokers[each] for each in sorted(self.brokers, reverse=True)}
        return named if self.zookeeper is None else {**named, "ZooKeeper": self.zookeeper}

    def up(self) -> Iterator[None]:
        """Ends when every broker is ready and knows all others and the controller. Raises StartFailed, OSError."""
        self.plan.write()
        deadline = time.monotonic() + START_SECONDS
        if self.zookeeper is not None:
            self.zookeeper.begin()
            yield from _await("ZooKeeper", self.zookeeper, deadline)
        first, *others = self.brokers
        for group in ([first], others):  # the first one becomes the controller
            for broker_id in group:
                self.brokers[broker_id].begin()
            for broker_id in group:
                yield from _await(f"broker {broker_id}", self.brokers[broker_id], deadline)
        while not self.agreed():
            for name, child in self.children().items():
                if (code := child.ended()) is not None:
                    raise StartFailed(f"{name}: exit code {code}:\n{child.log_tail()}")
            if time.monotonic() > deadline:
                raise StartFailed("the brokers do not know each other and one controller yet")
            time.sleep(POLL_SECONDS)
            yield

    def agreed(self) -> bool:
        """Whether every broker knows all others, and all the same controller."""
        try:
            found = [asyncio.run(examine(HOST, port, with_partitions=False)) for port in self.plan.ports.values()]
        except Unreachable:
            return False
        everyone, controllers = set(self.plan.ports), {each.controller_id for each in found}
        return len(controllers) == 1 and controllers <= everyone and all(each.brokers == everyone for each in found)

    def down(self) -> Iterator[str]:
        """One after the other, so that each can hand over to those that are left; ZooKeeper last. Yields "" wherever
        it waits, and a line for what did not stop in time and was killed."""
        for name, child in self.children().items():
            child.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            while child.process is not None and child.ended() is None:
                if time.monotonic() > deadline:
                    child.kill()
                    yield f"{name} did not stop within {STOP_SECONDS:.0f} s and was killed"
                time.sleep(POLL_SECONDS)
                yield ""

    def kill(self) -> None:
        """All at once."""
        for child in self.children().values():
            child.kill()


def _await(name: str, child: ChildProcess, deadline: float) -> Iterator[None]:
    try:
        while not child.is_ready(deadline):
            time.sleep(POLL_SECONDS)
            yield
    except StartFailed as error:
        raise StartFailed(f"{name}: {error}") from None
