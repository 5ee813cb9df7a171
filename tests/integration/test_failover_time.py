"""How long a thousand partitions have no leader after a kill -9, counted from the end of the dead broker's session.

A machine that others use makes it longer; the aim of a second holds for --long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pybroker.controller import paths
from tests.support.broker import wait_until
from tests.support.local_cluster import ClusterBroker, OurCluster
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(240)

TOPIC, PARTITIONS = "many", 1000
SESSION_MS = 6000
AIM_SECONDS, LIMIT_SECONDS = 1.0, 10.0


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[OurCluster]:
    settings = {"zookeeper.session.timeout.ms": SESSION_MS, "auto.leader.rebalance.enable": "false"}
    with OurCluster(f"{zookeeper.address}/failover{tmp_path}", tmp_path, settings) as made:
        yield made


def led(broker: ClusterBroker, by: set[int]) -> bool:
    """Whether all partitions are led by these brokers, as this one tells its clients."""
    with broker.client() as client:
        asked = {"Topics": [{"Name": TOPIC}], "AllowAutoTopicCreation": False}
        (topic,) = client.call("Metadata", 12, asked)["Topics"]
    found = topic["Partitions"]
    return len(found) == PARTITIONS and all(not each["ErrorCode"] and each["LeaderId"] in by for each in found)


@pytest.mark.parametrize("victim", ["the controller", "another"])
def test_new_leaders_within_a_second(
    cluster: OurCluster, zookeeper: ZooKeeperServer, long_run: bool, victim: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)], request_timeout=60)[TOPIC].result(90)
    for broker in cluster:
        wait_until(lambda broker=broker: led(broker, {1, 2, 3}), 60, "leaders")
    controller = admin.list_topics(timeout=10).controller_id
    dead = controller if victim == "the controller" else next(each for each in (1, 2) if each != controller)
    cluster[dead].kill()
    left = {1, 2, 3} - {dead}
    client = zookeeper.client()
    gone = Event()
    chroot = "/" + cluster.plan.zookeeper.partition("/")[2]
    if client.exists(chroot + paths.broker(dead), watch=lambda _: gone.set()) is not None:
        assert gone.wait(SESSION_MS / 1000 + 30), "the session ends"
    began = time.monotonic()
    client.stop()
    client.close()
    for broker_id in left:
        wait_until(lambda each=cluster[broker_id]: led(each, left), 60, "new leaders")
    took = time.monotonic() - began
    assert took < (AIM_SECONDS if long_run else LIMIT_SECONDS)
