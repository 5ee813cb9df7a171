"""ZooKeeper stops and comes back, and a controller's session ends: clients produce and consume throughout."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pybroker.broker.health_command import Examination, Unreachable, examine
from tests.faults.load import GroupLoad, IdempotentLoad, check
from tests.support.broker import wait_until
from tests.support.local_cluster import ClusterBroker, OurCluster
from tests.support.proxy import CuttableProxy
from tests.support.zookeeper import ZooKeeperServer, need_zookeeper

pytestmark = pytest.mark.timeout(240)

TOPIC, PARTITIONS = "outage", 12
SETTINGS = {
    "zookeeper.session.timeout.ms": 4000,
    "zookeeper.health.check.interval.ms": 1000,
    "replica.lag.time.max.ms": 4000,
}
EVENLY, LED_BY_OTHERS = ([1, 2, 3], [2, 3, 1], [3, 1, 2]), ([2, 3, 1], [3, 1, 2])
SILENT, WELL = "ZooKeeper does not answer", "is a healthy member of the cluster again"


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """One that may be stopped."""
    need_zookeeper()
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


class Proxy:
    """A CuttableProxy in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._proxy = CuttableProxy(port)
        self.mend()

    @property
    def address(self) -> str:
        return self._proxy.address

    def mend(self) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.mend(), self._loop).result(10)

    def cut(self) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.cut(), self._loop).result(10)

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def told(broker: ClusterBroker) -> Examination | None:
    """What the broker says, once it is fit."""
    try:
        found = asyncio.run(examine(broker.host, broker.port))
    except Unreachable:
        return None
    return None if found.troubles() or found.partitions < PARTITIONS else found


def agrees(found: Examination | None) -> bool:
    """That all are there and another than broker 1 is the controller."""
    return found is not None and found.brokers == {1, 2, 3} and found.controller_id in (2, 3)


def wait_fit(cluster: OurCluster) -> None:
    for broker in cluster:
        wait_until(lambda broker=broker: told(broker), 60, f"broker {broker.broker_id} fit to serve")


@contextmanager
def load_on(cluster: OurCluster, replicas: Sequence[list[int]]) -> Iterator[IdempotentLoad]:
    """Writes and reads; in the end all that was sent is there once. Partitions have these replicas in turn."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assignment = [replicas[partition % len(replicas)] for partition in range(PARTITIONS)]
    topic = NewTopic(TOPIC, PARTITIONS, replica_assignment=assignment, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])[TOPIC].result(60)
    wait_fit(cluster)
    with (
        GroupLoad(cluster.bootstrap, TOPIC, "readers") as group,
        IdempotentLoad(cluster.bootstrap, TOPIC, PARTITIONS) as load,
    ):
        wait_until(lambda: len(group.waits.partitions) == PARTITIONS, 60, "records of every partition")
        yield load
        load.end()
        wait_until(group.has_all(load), 60, "all that was acknowledged to be read")
    check(load, group)


def acknowledged(load: IdempotentLoad) -> None:
    """Each partition takes five more records."""
    before = dict(load.waits.partitions)
    for partition in range(PARTITIONS):
        enough = before[partition] + 5
        wait_until(lambda at=partition, enough=enough: load.waits.partitions[at] >= enough, 60, "acknowledgements")


def changes_of_health(broker: ClusterBroker) -> list[str]:
    """S for each time when ZooKeeper did not answer, W for each when all was well again."""
    return ["S" if found == SILENT else "W" for found in re.findall(f"{SILENT}|{WELL}", broker.log_text())]


def test_brokers_serve_on_while_zookeeper_is_away(own_zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """Each change of health is one line, and nobody registers anew: the sessions go on."""
    settings = SETTINGS | {"zookeeper.session.timeout.ms": 40_000}
    with OurCluster(f"{own_zookeeper.address}/outage", tmp_path, settings) as cluster, load_on(cluster, EVENLY) as load:
        own_zookeeper.stop()
        for broker in cluster:
            wait_until(lambda broker=broker: changes_of_health(broker)[-1:] == ["S"], 30, "the health check")
        acknowledged(load)
        assert all(told(broker) for broker in cluster), "who serves is fit in the eyes of those who ask"
        own_zookeeper.start()
        for broker in cluster:
            wait_until(lambda broker=broker: changes_of_health(broker)[-1:] == ["W"], 60, "the recovery")
        acknowledged(load)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("after", 3, 3)])["after"].result(60)
        for broker in cluster:
            lines = changes_of_health(broker)
            assert all(one != other for one, other in pairwise(lines)), "a line is no change"
        assert "is registered again" not in cluster.log_text()


def test_a_controller_whose_session_ends_resigns_and_comes_back_as_a_broker(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Only it is cut off from ZooKeeper: its node goes, another controls; it hears of it when it is back. It leads
    nothing that is written: till it hears, it would hold its clients, as Apache Kafka's brokers do."""
    proxy, chroot = Proxy(zookeeper.port), f"/outage{tmp_path}"
    own = {1: {"zookeeper.connect": f"{proxy.address}{chroot}"}}
    try:
        cluster = OurCluster(f"{zookeeper.address}{chroot}", tmp_path, SETTINGS, own=own)
        with cluster, load_on(cluster, LED_BY_OTHERS) as load:
            assert "broker 1 is the controller, epoch 1" in cluster[1].log_text()
            proxy.cut()
            wait_until(lambda: "/brokers/ids/1" not in zookeeper.tree(chroot), 30, "the end of the session")
            wait_until(lambda: "is the controller, epoch 2" in cluster.log_text(), 30, "another controller")
            acknowledged(load)
            assert "is the controller no longer" not in cluster[1].log_text(), "it can't know yet"
            proxy.mend()
            wait_until(lambda: "broker 1 is registered again" in cluster[1].log_text(), 30, "the registration")
            said = cluster[1].log_text()
            assert said.index("broker 1 is the controller no longer") < said.index("broker 1 is registered again")
            wait_fit(cluster)
            for broker in cluster:
                wait_until(lambda broker=broker: agrees(told(broker)), 30, "the same view of the cluster")
            acknowledged(load)
    finally:
        proxy.close()
