"""Three brokers under one ZooKeeper: partitions move to another broker, and a broker that stops hands over first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_two_brokers import metadata, produce
from tests.support.broker import BrokerProcess, wait_until
from tests.support.local_cluster import OurCluster
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(180)

TOPIC = "moves"


@pytest.fixture
def brokers(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[OurCluster]:
    """1 is the controller."""
    settings = {"controlled.shutdown.retry.backoff.ms": 200}
    with OurCluster(f"{zookeeper.address}/moves{tmp_path}", tmp_path, settings) as cluster:
        yield cluster


def partition(broker: BrokerProcess) -> dict[str, Any]:
    (topic,) = metadata(broker, TOPIC)["Topics"]
    found: dict[str, Any] = topic["Partitions"][0] if topic["Partitions"] else {}
    return found


def reassign(broker: BrokerProcess, replicas: list[int] | None) -> int:
    asked = [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0, "Replicas": replicas}]}]
    with broker.client() as client:
        answer = client.call("AlterPartitionReassignments", 0, {"TimeoutMs": 5000, "Topics": asked})
    code: int = answer["Responses"][0]["Partitions"][0]["ErrorCode"]
    return code


def test_a_partition_moves_and_its_leader_leaves(brokers: OurCluster, tmp_path: Path) -> None:
    with brokers[1].client() as client:
        assignment = [{"PartitionIndex": 0, "BrokerIds": [1, 2]}]
        topic = {"Name": TOPIC, "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": assignment, "Configs": []}
        client.call("CreateTopics", 5, {"Topics": [topic], "TimeoutMs": 10000})
    for broker in brokers:
        wait_until(lambda broker=broker: partition(broker).get("LeaderId") == 1, 20, "the leader")
    produce(brokers[2].address, TOPIC, 0, [b"before %d" % each for each in range(100)])

    assert reassign(brokers[1], [3, 2]) == 0
    wait_until(lambda: partition(brokers[2])["ReplicaNodes"] == [3, 2], 30, "the new replicas")
    wait_until(lambda: partition(brokers[2])["LeaderId"] == 3, 20, "the new leader")
    assert reassign(brokers[1], None) == 85  # it is over
    wait_until(lambda: not list((tmp_path / "broker-1").glob(f"{TOPIC}-0")), 20, "the old replica to go")
    produce(brokers[2].address, TOPIC, 0, [b"after %d" % each for each in range(100)])
    wait_until(lambda: sorted(partition(brokers[2])["IsrNodes"]) == [2, 3], 20, "both in sync")

    brokers[3].stop()
    assert "Other brokers lead what this one led" in brokers[3].log_text()
    assert partition(brokers[2])["LeaderId"] == 2  # known before its session has ended
    produce(brokers[2].address, TOPIC, 0, [b"alone"])
