"""Three brokers under one ZooKeeper: partitions move to another broker, and a broker that stops hands over first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_two_brokers import metadata, produce
from tests.support.broker import BrokerProcess, wait_until
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(180)

TOPIC = "moves"


@pytest.fixture
def brokers(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[dict[int, BrokerProcess]]:
    """1 is the controller."""
    made = {}
    with ExitStack() as stack:
        for broker_id in (1, 2, 3):
            settings = {
                "zookeeper.connect": f"{zookeeper.address}/moves{tmp_path}",
                "zookeeper.session.timeout.ms": 6000,
                "broker.id": broker_id,
                "controlled.shutdown.retry.backoff.ms": 200,
            }
            made[broker_id] = stack.enter_context(BrokerProcess(tmp_path / f"b{broker_id}", settings))
        yield made


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


def test_a_partition_moves_and_its_leader_leaves(brokers: dict[int, BrokerProcess], tmp_path: Path) -> None:
    with brokers[1].client() as client:
        assignment = [{"PartitionIndex": 0, "BrokerIds": [1, 2]}]
        topic = {"Name": TOPIC, "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": assignment, "Configs": []}
        client.call("CreateTopics", 5, {"Topics": [topic], "TimeoutMs": 10000})
    for broker in brokers.values():
        wait_until(lambda broker=broker: partition(broker).get("LeaderId") == 1, 20, "the leader")
    produce(brokers[2].address, TOPIC, 0, [b"before %d" % each for each in range(100)])

    assert reassign(brokers[1], [3, 2]) == 0
    wait_until(lambda: partition(brokers[2])["ReplicaNodes"] == [3, 2], 30, "the new replicas")
    wait_until(lambda: partition(brokers[2])["LeaderId"] == 3, 20, "the new leader")
    assert reassign(brokers[1], None) == 85  # it is over
    wait_until(lambda: not list((tmp_path / "b1").glob(f"{TOPIC}-0")), 20, "the old replica to go")
    produce(brokers[2].address, TOPIC, 0, [b"after %d" % each for each in range(100)])
    wait_until(lambda: sorted(partition(brokers[2])["IsrNodes"]) == [2, 3], 20, "both in sync")

    brokers[3].stop()
    assert "Other brokers lead what this one led" in brokers[3].log_text()
    assert partition(brokers[2])["LeaderId"] == 2  # known before its session has ended
    produce(brokers[2].address, TOPIC, 0, [b"alone"])
