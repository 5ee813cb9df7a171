"""Three brokers with an older inter.broker.protocol.version: who writes ISRs, and who gives out producer ids."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pybroker.controller import paths
from tests.support.broker import wait_until
from tests.support.local_cluster import OurCluster
from tests.support.records import batch
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(120)

TOPIC = "older"
IDS_AT_EACH = 1100  # more than a block


@pytest.fixture(params=["2.6", "2.8", "3.9"])
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OurCluster]:
    settings = {
        "inter.broker.protocol.version": request.param,
        "zookeeper.session.timeout.ms": 20_000,
        "replica.lag.time.max.ms": 1500,
    }
    with OurCluster(f"{zookeeper.address}/older{tmp_path}", tmp_path, settings) as made:
        yield made


def value(cluster: OurCluster, zookeeper: ZooKeeperServer, path: str) -> Any:
    data, _ = zookeeper.tree(chroot(cluster))[path]
    assert data is not None
    return json.loads(data)


def notifications(cluster: OurCluster, zookeeper: ZooKeeperServer) -> list[str]:
    return [path for path in zookeeper.tree(chroot(cluster)) if path.startswith(paths.ISR_CHANGES + "/")]


def chroot(cluster: OurCluster) -> str:
    _, slash, path = cluster.plan.zookeeper.partition("/")
    return slash + path


def test_isrs_shrink_and_grow_without_a_new_leader_epoch(cluster: OurCluster, zookeeper: ZooKeeperServer) -> None:
    creator = AdminClient({"bootstrap.servers": cluster.bootstrap})
    creator.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(30)
    state = paths.partition_state(TOPIC, 0)
    wait_until(lambda: state in zookeeper.tree(chroot(cluster)), 30, "the partition's state")
    before = value(cluster, zookeeper, state)
    stalled = next(broker_id for broker_id in (3, 2) if broker_id != before["leader"])
    rest = sorted({1, 2, 3} - {stalled})
    leader = cluster[before["leader"]].client()  # librdkafka may ask the stalled one

    def isr() -> list[int]:
        (topic,) = leader.call("Metadata", 12, {"Topics": [{"TopicId": bytes(16), "Name": TOPIC}]})["Topics"]
        return sorted(topic["Partitions"][0]["IsrNodes"])

    wait_until(lambda: isr() == [1, 2, 3], 30, "all in sync")
    process = cluster[stalled].pid
    os.kill(process, signal.SIGSTOP)
    try:
        assert leader.produce(TOPIC, batch([b"one"]), acks=1)["ErrorCode"] == 0
        wait_until(lambda: isr() == rest, 30, "an ISR without the stalled follower")
    finally:
        os.kill(process, signal.SIGCONT)
    wait_until(lambda: isr() == [1, 2, 3], 30, "an ISR with it again")
    after = value(cluster, zookeeper, state)
    assert after | {"isr": []} == before | {"isr": []}, "nothing but the ISR has changed, and that is the old one"
    assert sorted(after["isr"]) == [1, 2, 3]
    wait_until(lambda: notifications(cluster, zookeeper) == [], 20, "notifications are taken")
    leader.close()


def test_no_producer_id_is_given_out_twice(cluster: OurCluster, zookeeper: ZooKeeperServer) -> None:
    given: list[int] = []
    clients = [broker.client() for broker in cluster]
    for _ in range(IDS_AT_EACH):
        for client in clients:
            answer = client.call("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})
            assert answer["ErrorCode"] == 0
            given.append(answer["ProducerId"])
    for client in clients:
        client.close()
    assert len(set(given)) == len(given)
    blocks = {each // 1000 for each in given}
    latest = value(cluster, zookeeper, paths.PRODUCER_ID_BLOCK)
    assert int(latest["block_start"]) // 1000 == max(blocks)
    assert len(blocks) == 6, "two of each broker"
