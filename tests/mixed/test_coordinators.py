"""Groups whose coordinator moves between Apache Kafka and ours: each loads what the other has written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mixed.clients import produce
from tests.support.broker import wait_until
from tests.support.cluster import KAFKA, OURS, Cluster
from tests.support.groups import PARTITIONS, Group
from tests.support.java import member, need_java
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(300)

OFFSETS = "__consumer_offsets"
APACHE, OTHER, HERE = 1, 2, 3
SESSION_MS = 30_000  # longer than any failover: whoever is asked to join again lost its group


@pytest.fixture(scope="module")
def cluster(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The offsets topic has one partition, on 1 and 3; 2 stays the controller."""
    need_java("3.9.2", compiler=True)
    settings = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3"}
    with Cluster(
        tmp_path_factory.mktemp("groups"), zookeeper, {OTHER: KAFKA, APACHE: KAFKA, HERE: OURS}, settings
    ) as running:
        yield running


class MovingGroup(Group):
    """Members of librdkafka and Java in one group, whose coordinator is moved."""

    def __init__(self, cluster: Cluster, name: str, java: list[str]) -> None:
        self.cluster, self.topic = cluster, name
        self.programs = {"native": [sys.executable, "-m", "tests.support.member", "confluent-kafka"], "java": java}
        self.settings = {
            "address": cluster.bootstrap, "topic": name, "group": name, "assignor": "range", "session_ms": SESSION_MS,
            "instance": None, "protocol": "classic",
        }  # fmt: skip
        self.members, self.gone, self.produced = [], [], [0] * PARTITIONS
        cluster.create_topic(name, {index: [APACHE, HERE, OTHER] for index in range(PARTITIONS)})

    def start_as(self, kind: str, instance: str | None = None) -> None:
        self.program = self.programs[kind]
        self.start(instance)

    def produce(self, count: int = 20) -> None:
        produce(self.cluster, self.topic, f"after {sum(self.produced)}", count * PARTITIONS)
        self.produced = [each + count for each in self.produced]

    @property
    def coordinator(self) -> int:
        return self.cluster.states(OFFSETS)[0].leader

    def generation(self) -> int:
        """The one that the coordinator takes a member's heartbeat for; -1 while it can't tell."""
        with self.cluster.client(self.coordinator) as client:
            (group,) = client.call("DescribeGroups", 3, {"Groups": [self.topic]})["Groups"]
            if group["ErrorCode"] or group["GroupState"] != "Stable":
                return -1
            ids = {"GroupId": self.topic, "MemberId": group["Members"][0]["MemberId"]}
            for generation in range(1, 30):
                if client.call("Heartbeat", 2, ids | {"GenerationId": generation})["ErrorCode"] == 0:
                    return generation
        return -1

    def offsets(self) -> dict[int, tuple[int, str]]:
        topics = [{"Name": self.topic, "PartitionIndexes": list(range(PARTITIONS))}]
        with self.cluster.client(self.coordinator) as client:
            answer = client.call("OffsetFetch", 5, {"GroupId": self.topic, "Topics": topics})
        if answer["ErrorCode"]:
            return {}
        (found,) = answer["Topics"]
        return {each["PartitionIndex"]: (each["CommittedOffset"], each["Metadata"]) for each in found["Partitions"]}

    def wait_committed(self) -> None:
        wanted = dict(enumerate(self.produced))
        wait_until(
            lambda: {index: offset for index, (offset, _) in self.offsets().items()} == wanted, 30, "the commits"
        )


@pytest.fixture
def group(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MovingGroup]:
    made = MovingGroup(cluster, f"group-{request.node.name.partition('[')[0]}", member("3.9.2", tmp_path))
    try:
        made.start_as("native", "static")
        made.start_as("java")
        made.wait_settled(60)
        made.start_as("native")
        made.wait_settled(60)
        yield made
    finally:
        made.close()


def move(cluster: Cluster, broker_id: int) -> None:
    others = [each for each in (APACHE, HERE, OTHER) if each != broker_id]
    moves = {(OFFSETS, 0): [broker_id, *others]}
    cluster.reassign(moves)
    cluster.wait_reassigned(moves)
    cluster.elect([(OFFSETS, 0)])
    cluster.wait_leader(OFFSETS, 0, broker_id)


def check_kept(group: MovingGroup, before: tuple[int, dict[int, tuple[int, str]]], changes: list[int]) -> None:
    """Another broker coordinates now: members go on as if nothing had been."""
    wait_until(lambda: group.generation() >= 0, 60, "the group being loaded")
    assert (group.generation(), group.offsets()) == before
    group.produce()
    group.wait_consumed()
    group.wait_committed()
    assert [each.changes() for each in group.members] == changes, "nobody was assigned anew"
    assert group.generation() == before[0]


def test_a_coordinator_that_moves_or_dies(cluster: Cluster, group: MovingGroup) -> None:
    group.produce()
    group.wait_consumed()
    group.wait_committed()
    cluster.make_controller(OTHER)
    for broker_id in (HERE, APACHE, HERE):
        before, changes = (group.generation(), group.offsets()), [each.changes() for each in group.members]
        assert before[0] > 0
        move(cluster, broker_id)
        check_kept(group, before, changes)
    for broker_id, heir in ((HERE, APACHE), (APACHE, HERE)):
        move(cluster, broker_id)
        cluster.wait_in_sync(OFFSETS, group.topic)
        before, changes = (group.generation(), group.offsets()), [each.changes() for each in group.members]
        cluster.kill(broker_id)
        cluster.wait_leader(OFFSETS, 0, heir)
        check_kept(group, before, changes)
        cluster.bring_back(broker_id)
    group.check_commits()
