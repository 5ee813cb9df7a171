"""What our controller tells the brokers, in which order: as recorded of Apache Kafka's in the same situations, with
each inter.broker.protocol.version. Three brokers; proxies record what brokers 2 and 3 hear, and broker 1 when it is no
longer the controller (it tells itself in its own process)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess, wait_until
from tests.support.cluster import OURS, Cluster
from tests.support.recorder import Recorded, Recorder
from tests.support.sequences import ORDERS, Order, heard, order_of, orders_of_kafka, recorded_by_kafka
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(240)

TOPICS = {
    "t-a": [[1, 2, 3], [2, 3, 1], [3, 1, 2]],
    "t-b": [[2, 3], [3, 2]],
    "t-del": [[1, 3], [2, 3]],
    "t-un": [[3, 2]],
    "t-mv": [[1, 2]],
    "t-cx": [[1, 2]],
}
SETTINGS = {"zookeeper.session.timeout.ms": "20000", "replica.lag.time.max.ms": "20000"}


class Scenarios:
    """Plays what was played to Kafka's brokers, and waits after each step until everybody has heard of it."""

    def __init__(self, cluster: Cluster, recorder: Recorder, protocol: str) -> None:
        self.cluster, self.recorder, self.protocol = cluster, recorder, protocol
        self.next_controller = next_controller(protocol)

    def play(self) -> None:
        for broker_id in (1, 2, 3):
            self.step(f"start-broker-{broker_id}", partial(self.cluster.start, broker_id))
        self.step("topic-creation", self.create_topics)
        if self.protocol == "2.8":  # in this recording it had lost its session before, and led nothing since
            self.step("follower-stall-isr-shrink", lambda: self.kill(3))
            self.step("follower-resume-isr-expand", lambda: self.start_again(3))
        self.step("kill9-follower", lambda: self.kill(3))
        self.step("follower-return", lambda: self.start_again(3))
        self.step("kill9-leader", lambda: self.kill(2))
        self.step("old-leader-return", lambda: self.start_again(2))
        every = [(topic, index) for topic in ("t-a", "t-b") for index in self.cluster.assignment(topic)]
        self.step("preferred-election-request", lambda: self.cluster.elect(every))
        self.step("controlled-shutdown-leader", lambda: self.cluster.stop(2))
        self.step("restart-after-controlled-shutdown", lambda: self.start_again(2))
        self.step("preferred-election-znode", self.elect_by_node)
        self.step("reassignment", lambda: self.move("t-mv", [3, 2]))
        self.step("reassignment-cancel", self.cancel)
        self.step("reassignment-znode", lambda: self.move("t-mv", [1, 3]))
        self.step("partition-increase", self.add_partitions)
        self.step("topic-deletion", lambda: self.cluster.delete_topic("t-del"))
        self.step("controller-kill9", self.kill_controller)
        self.step("old-controller-return", lambda: self.start_again(1))

    def step(self, name: str, action: Callable[[], None]) -> None:
        self.recorder.scenario = name
        action()
        wait_until(self.all_heard, 60, f"the end of {name}")

    def create_topics(self) -> None:
        for topic, assignment in TOPICS.items():
            self.cluster.create_topic(topic, dict(enumerate(assignment)))

    def kill(self, *broker_ids: int, controller: bool = False) -> None:
        """Their sessions end at once."""
        for broker_id in broker_ids:
            self.cluster.kill(broker_id)
        ending = self.cluster._store.transaction()
        for broker_id in broker_ids:
            ending.delete(f"{self.cluster.chroot}/brokers/ids/{broker_id}")
        if controller:
            ending.delete(f"{self.cluster.chroot}/controller")
        assert set(ending.commit()) == {True}

    def kill_controller(self) -> None:
        """Who became the next one then becomes it now."""
        other = 5 - self.next_controller
        self.cluster.pause(other)
        self.kill(1, controller=True)
        wait_until(lambda: self.cluster.controller_id() == self.next_controller, 20, "the next controller")
        self.cluster.resume(other)

    def start_again(self, broker_id: int) -> None:
        self.cluster.bring_back(broker_id)
        self.cluster.wait_in_sync(*self.topics())

    def elect_by_node(self) -> None:
        asked = [{"topic": "t-a", "partition": 1}, {"topic": "t-b", "partition": 0}]
        value = json.dumps({"version": 1, "partitions": asked}).encode()
        self.cluster._store.create(f"{self.cluster.chroot}/admin/preferred_replica_election", value)
        self.cluster.wait_leader("t-a", 1, 2)
        self.cluster.wait_leader("t-b", 0, 2)

    def move(self, topic: str, replicas: list[int]) -> None:
        moves = {(topic, 0): replicas}
        self.cluster.reassign(moves)
        self.cluster.wait_reassigned(moves)
        self.cluster.wait_in_sync(topic)

    def cancel(self) -> None:
        """Before the new replica has caught up."""
        self.cluster.pause(3)
        self.cluster.reassign({("t-cx", 0): [1, 3]})
        asked = [{"Name": "t-cx", "Partitions": [{"PartitionIndex": 0, "Replicas": None}]}]
        self.cluster.ask_controller("AlterPartitionReassignments", 0, {"TimeoutMs": 10000, "Topics": asked})
        self.cluster.resume(3)
        self.cluster.wait_reassigned({("t-cx", 0): [1, 2]})

    def add_partitions(self) -> None:
        more = {"Name": "t-b", "Count": 4, "Assignments": [{"BrokerIds": [1, 2]}, {"BrokerIds": [2, 1]}]}
        self.cluster.ask_controller("CreatePartitions", 1, {"Topics": [more], "TimeoutMs": 10000})
        wait_until(lambda: len(self.cluster.states("t-b")) == 4, 20, "the new partitions")

    def topics(self) -> list[str]:
        return [topic for topic in TOPICS if self.cluster.assignment(topic)]

    def all_heard(self) -> bool:
        """The last request was answered, and every running broker but the controller knows of each partition what
        ZooKeeper says; what it does not host any longer is gone from its disk."""
        running = [each for each in self.cluster.running() if each != self.cluster.controller_id()]
        orders = [each for each in self.recorder.messages if each.api in ORDERS and each.to in running]
        if any(each.response is None for each in {each.to: each for each in orders}.values()):
            return False
        told: dict[tuple[str, int], dict[str, object]] = {}
        for order in map(order_of, orders):
            told.setdefault((order.api, order.to), {}).update(order.partitions)
        return all(self.has_heard(broker_id, told) for broker_id in running)

    def has_heard(self, broker_id: int, told: dict[tuple[str, int], dict[str, object]]) -> bool:
        broker = self.cluster.brokers[broker_id]
        for topic in self.topics():
            replicas = self.cluster.assignment(topic)
            for index, state in self.cluster.states(topic).items():
                at = f"{topic}-{index}"
                wanted = state.leader, state.leader_epoch, frozenset(state.isr), state.version
                metadata = _known(told.get(("UpdateMetadata", broker_id), {}).get(at))
                hosted = _known(told.get(("LeaderAndIsr", broker_id), {}).get(at))
                if metadata != wanted or (broker_id in replicas[index] and hosted[:2] != wanted[:2]):
                    return False
                if broker_id not in replicas[index] and (broker.data_dir / at).exists():
                    return False
        return True


def _known(fields: object) -> tuple[object, ...]:
    return tuple(fields[key] for key in ("leader", "epoch", "isr", "version")) if isinstance(fields, dict) else ()


Run = list[Recorded]


@pytest.fixture(scope="module", params=["3.9", "2.8", "2.6"])
def protocol(request: pytest.FixtureRequest, long_run: bool) -> str:
    found: str = request.param
    if found == "2.8" and not long_run:
        pytest.skip("with --long")
    return found


@pytest.fixture(scope="module")
def recorded(protocol: str, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    work: Path = tmp_path_factory.mktemp(f"sequences-{protocol}")
    settings = SETTINGS | {"inter.broker.protocol.version": protocol}
    cluster = Cluster(work, zookeeper, dict.fromkeys((1, 2, 3), OURS), settings)
    with Recorder() as recorder:
        for broker_id, broker in cluster.brokers.items():
            assert isinstance(broker, BrokerProcess)
            port = recorder.proxy(broker_id, broker.wanted_port)
            broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        cluster._store = zookeeper.client()
        try:
            Scenarios(cluster, recorder, protocol).play()
            messages = list(recorder.messages)
        finally:
            cluster.close()
        cluster.check_logs()
        yield messages


#: A session's end and what came after it overlap in some recordings: they are compared together.
TOGETHER = {
    "kill9-follower": "follower-return",
    "kill9-leader": "old-leader-return",
    "controller-kill9": "old-controller-return",
}
NOT_PLAYED = ("follower-stall-isr-shrink", "follower-resume-isr-expand", "auto-create-topic")


def sequences(orders: list[Order], protocol: str) -> dict[tuple[str, int], list[str]]:
    together = [each._replace(scenario=TOGETHER.get(each.scenario, each.scenario)) for each in orders]
    return heard(together, TOPICS, leaders_write=protocol == "2.6")


@cache
def of_kafka(protocol: str) -> dict[tuple[str, int], list[str]]:
    return sequences(orders_of_kafka(protocol), protocol)


def next_controller(protocol: str) -> int:
    return next(each.controller for each in orders_of_kafka(protocol) if each.scenario == "controller-kill9")


PLAYED = sorted({scenario for scenario, _ in of_kafka("3.9")} - {"start-broker-1", *NOT_PLAYED})


@pytest.mark.parametrize("scenario", PLAYED)
def test_brokers_hear_what_kafkas_hear(recorded: Run, protocol: str, scenario: str) -> None:
    ours = sequences([order_of(each) for each in recorded if each.api in ORDERS], protocol)
    controller = next_controller(protocol) if scenario == "old-controller-return" else 1
    others = [broker_id for broker_id in (1, 2, 3) if broker_id != controller]
    kafkas = {broker_id: of_kafka(protocol).get((scenario, broker_id)) for broker_id in others}
    assert any(kafkas.values())
    found = {broker_id: ours.get((scenario, broker_id)) for broker_id in others}
    if scenario == "controlled-shutdown-leader":  # the one that leaves may be gone before it hears all
        ours_heard, kafkas_heard = found.pop(2) or [], kafkas.pop(2) or []
        both = min(len(ours_heard), len(kafkas_heard))
        assert both and ours_heard[:both] == kafkas_heard[:both]
    assert found == kafkas


def test_leaders_endpoints_are_told(recorded: Run) -> None:
    """To whom a broker is to fetch from: the live leaders of the partitions in a request."""
    for message in recorded:
        if message.api == "LeaderAndIsr":
            order = order_of(message)
            leaders = {fields["leader"] for fields in order.partitions.values()} - {-1}
            if message.scenario in ("controller-kill9", "old-controller-return"):
                leaders.discard(1)  # dead, and told as it was found
            assert order.live - {1} == leaders - {1}, message.scenario


def test_versions_and_client_ids(recorded: Run, protocol: str) -> None:
    """Of everything that brokers say to each other; ApiVersions is asked only before AlterPartition."""
    played = {each.scenario for each in recorded}
    said = {(each.api, each.version, _kind(each.client)) for each in recorded if each.client != "test"}
    kafkas = {
        (api, version, _kind(client))
        for scenario, _, api, version, client, _ in recorded_by_kafka(protocol)
        if scenario in played | set(NOT_PLAYED) and api in {each.api for each in recorded}
    }
    assert said == kafkas


def _kind(client: str) -> str:
    return re.sub(r"\d+", "N", client)
