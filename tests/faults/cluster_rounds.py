"""A cluster that is hurt while clients use it: its brokers behind a small interface, and what a round does with them.

Node is all that a fault needs of a broker, whatever program it is. A round deals some faults from a shuffled deck
(tests/faults/cluster_faults.py) while traffic runs (cluster_traffic.py), heals what is hurt, and holds the replicas
against what the clients were told (cluster_checks.py). The seed decides which faults come in which order and whom they
hit; where in a request they fall is the machine's choice.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from tests.support.broker import BrokerProcess, wait_until
from tests.support.kafka import KafkaBroker
from tests.support.wire import Closed, WireClient
from tests.support.zookeeper import ZooKeeperServer

NONE, LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT, INVALID_REPLICATION_FACTOR, NOT_CONTROLLER = 0, 5, 7, 38, 41
#: The factor is one of brokers that may be dead.
TRY_AGAIN = {LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT, INVALID_REPLICATION_FACTOR, NOT_CONTROLLER}
SETTLING_S = 120.0
CALL_S = 60.0
CLIENT_S = 10.0

Answer = dict[str, Any]
PartitionState = tuple[int, int, tuple[int, ...], tuple[int, ...]]  # leader, leader epoch, replicas, ISR


class Node(Protocol):
    """One broker, always at the same address."""

    broker_id: int
    data_dir: Path  # its log directory
    running: bool  # started, and neither stopped nor killed
    paused: bool

    @property
    def address(self) -> str: ...
    def start(self) -> None:
        """Returns when it serves. AssertionError or StartFailed where it does not come up."""

    def stop(self) -> None:
        """SIGTERM, until the process is gone."""

    def kill(self) -> None:
        """SIGKILL."""

    def pause(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""

    def new_log_text(self) -> str:
        """What it has logged since the last call."""


class ProcessNode:
    """What Nodes share that are processes of this machine; `_broker` starts and ends it."""

    def __init__(self, broker_id: int, data_dir: Path, broker: BrokerProcess | KafkaBroker) -> None:
        self.broker_id = broker_id
        self.data_dir = data_dir
        self.running = self.paused = False
        self._broker = broker

    def stop(self) -> None:
        self._broker.stop(60)
        self.running = False

    def kill(self) -> None:
        self._broker.kill()
        self.running = self.paused = False

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.paused = False

    def _signal(self, number: int) -> None:
        assert self._broker.process is not None
        self._broker.process.send_signal(number)


class PyNode(ProcessNode):
    """A pybroker process as a Node."""

    def __init__(self, broker_id: int, directory: Path, settings: Mapping[str, Any]) -> None:
        data_dir = directory / f"b{broker_id}"
        overrides = {"broker.id": broker_id, **settings}
        self._process = BrokerProcess(data_dir, overrides, allow_traceback=True, start_timeout=90)
        super().__init__(broker_id, data_dir, self._process)
        self._log_read = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._process.wanted_port}"

    def start(self) -> None:
        self._process.start()
        self.running = True

    def new_log_text(self) -> str:
        with self._process.output.open("rb") as output:
            output.seek(self._log_read)
            data = output.read()
        self._log_read += len(data)
        return data.decode(errors="replace")


class Cluster:
    """Nodes and their ZooKeeper. As a context it starts them all and ends them all. Partitions have `factor` replicas,
    one on each node unless it says otherwise."""

    def __init__(
        self, nodes: Iterable[Node], zookeeper: ZooKeeperServer, session_s: float, factor: int | None = None
    ) -> None:
        self.nodes = {node.broker_id: node for node in nodes}
        self.zookeeper = zookeeper
        self.session_s = session_s
        self.factor = factor or len(self.nodes)

    def __enter__(self) -> Cluster:
        try:
            self.heal()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            if node.running:
                node.kill()
        self.zookeeper.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def serving(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running and not node.paused]

    def heal(self) -> None:
        """ZooKeeper and every node run again."""
        if self.zookeeper.process is None:
            self.zookeeper.start()
        for node in self.nodes.values():
            if node.paused:
                node.resume()
        self.start(node for node in self.nodes.values() if not node.running)

    def start(self, nodes: Iterable[Node]) -> None:
        """All of them at once."""
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(node.start) for node in nodes]:
                done.result()

    # What brokers say

    def client(self, broker_id: int, timeout: float = CLIENT_S) -> WireClient:
        host, port = self.nodes[broker_id].address.rsplit(":", 1)
        return WireClient(host, int(port), timeout=timeout)

    def metadata(self, broker_id: int | None = None, topic: str | None = None) -> Answer | None:
        """What one of them says of all topics or one, or the first that answers; None while none does."""
        topics = None if topic is None else [{"TopicId": bytes(16), "Name": topic}]
        asked = [node.broker_id for node in self.serving()] if broker_id is None else [broker_id]
        for each in asked:
            try:
                with self.client(each) as client:
                    return client.call("Metadata", 12, {"Topics": topics, "AllowAutoTopicCreation": False})
            except (Closed, OSError):
                continue
        return None

    def controller(self) -> int:
        """The controller, when one is known that serves."""
        serving = {node.broker_id for node in self.serving()}

        def known() -> list[int]:
            answers = filter(None, (self.metadata(each) for each in serving))
            return [answer["ControllerId"] for answer in answers if answer["ControllerId"] in serving]

        return int(wait_until(known, CALL_S, "a controller")[0])

    def call(self, api: str, version: int, request: Answer, code: Callable[[Answer], int], *fine: int) -> Answer:
        """Asks the controller until `code` of its answer is 0 or one of `fine`. Errors that pass are tried again."""
        last: object = None
        deadline = time.monotonic() + CALL_S
        while time.monotonic() < deadline:
            try:
                with self.client(self.controller(), 30) as client:
                    answer = client.call(api, version, request)
            except (Closed, OSError) as error:
                last = error
            else:
                last = error_code = code(answer)
                if error_code in (NONE, *fine):
                    return answer
                assert error_code in TRY_AGAIN, f"{api}: {answer}"
            time.sleep(0.1)
        raise AssertionError(f"{api} was not done within {CALL_S} s: {last}")

    def partitions(self, broker_id: int | None = None) -> dict[tuple[str, int], PartitionState]:
        """Every partition as one broker (or some broker) knows it; empty while none answers."""
        answer = self.metadata(broker_id)
        return {} if answer is None else states_of(answer)

    def partition(self, at: tuple[str, int]) -> PartitionState:
        """KeyError while nobody answers or knows it."""
        answer = self.metadata(topic=at[0])
        return states_of(answer or {"Topics": []})[at]

    def wait_for_leaders(self) -> None:
        """Every partition with a replica in sync that serves is led by such a one."""

        def led() -> bool:
            serving = {node.broker_id for node in self.serving()}
            states = self.partitions()
            return bool(states) and all(
                leader in serving or serving.isdisjoint(isr) for leader, _, _, isr in states.values()
            )

        wait_until(led, SETTLING_S, "a leader for every partition")

    def wait_until_settled(self, factor: int | None = None) -> None:
        """All brokers say the same, every replica is in sync, nothing is being moved; `factor` replicas each, but of
        internal topics."""
        said = ""

        def settled() -> bool:
            nonlocal said
            said = self.unsettled(factor)
            return not said

        try:
            wait_until(settled, SETTLING_S, "all replicas in sync")
        except AssertionError as error:
            raise AssertionError(f"{error}: {said}") from None

    def unsettled(self, factor: int | None) -> str:
        """Why the cluster is not settled, "" where it is."""
        views = {broker_id: self.metadata(broker_id) for broker_id in self.nodes}
        silent = [broker_id for broker_id, view in views.items() if view is None]
        if silent:
            return f"brokers {silent} do not answer"
        answers = [view for view in views.values() if view is not None]
        for name, of in (
            ("brokers", lambda view: sorted(each["NodeId"] for each in view["Brokers"])),
            ("controller", lambda view: view["ControllerId"]),
            ("partitions", states_of),
        ):
            said = [of(view) for view in answers]
            if any(each != said[0] for each in said):
                return f"{name} differ: {_differences(said)}"
        if len(answers[0]["Brokers"]) < len(self.nodes):
            return f"brokers known: {answers[0]['Brokers']}"
        for at, (leader, _, replicas, isr) in states_of(answers[0]).items():
            wanted = len(replicas) if factor is None or at[0].startswith("__") else factor
            if leader not in isr or sorted(isr) != sorted(replicas) or len(replicas) != wanted:
                return f"{at} has replicas {replicas}, ISR {isr}, leader {leader}"
        with self.client(self.controller()) as client:
            moving = client.call("ListPartitionReassignments", 0, {"TimeoutMs": 10000, "Topics": None})
        return f"moving: {moving['Topics']}" if moving["Topics"] or moving["ErrorCode"] else ""


def states_of(metadata: Answer) -> dict[tuple[str, int], PartitionState]:
    return {
        (topic["Name"], each["PartitionIndex"]): (
            each["LeaderId"], each["LeaderEpoch"], tuple(each["ReplicaNodes"]), tuple(each["IsrNodes"]),
        )
        for topic in metadata["Topics"]
        for each in topic["Partitions"]
    }  # fmt: skip


def _differences(said: list[Any]) -> object:
    if not isinstance(said[0], dict):
        return said
    keys = {key for each in said for key in each}
    return {key: [each.get(key) for each in said] for key in keys if len({each.get(key) for each in said}) > 1}
