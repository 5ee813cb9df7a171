"""Three brokers under one ZooKeeper: what was acknowledged by all in-sync replicas outlives the leader's death."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import wait_until
from tests.support.local_cluster import OurCluster
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(240)

TOPIC, PARTITIONS, BROKERS = "replicated", 4, (1, 2, 3)
SESSION_MS = 2000


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[OurCluster]:
    settings = {
        "zookeeper.session.timeout.ms": SESSION_MS,
        "default.replication.factor": 3,
        "replica.lag.time.max.ms": 4000,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    racks = {broker_id: {"broker.rack": f"rack{broker_id}"} for broker_id in BROKERS}
    where = f"{zookeeper.address}/replication{tmp_path}"
    with OurCluster(where, tmp_path, settings, ids=BROKERS, own=racks) as made:
        yield made


def admin(cluster: OurCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def states(cluster: OurCluster) -> dict[int, Any]:
    found = admin(cluster).list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
    return dict(found)


def make_topic(cluster: OurCluster) -> None:
    topic = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
    client = admin(cluster)
    for future in client.create_topics([topic]).values():
        future.result(30)
    wait_until(lambda: in_sync(cluster), what="all replicas in sync")


def in_sync(cluster: OurCluster) -> bool:
    found = states(cluster)
    return len(found) == PARTITIONS and all(sorted(each.isrs) == list(BROKERS) for each in found.values())


class Writer:
    """Produces numbered records with acks=all and idempotence until stopped; remembers those acknowledged."""

    def __init__(self, cluster: OurCluster) -> None:
        self.acknowledged: list[tuple[int, int, bytes]] = []  # partition, offset, value
        self._producer = Producer({
            "bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 2,
            "topic.metadata.refresh.interval.ms": 1000,
        })  # fmt: skip
        self._stop = Event()
        self._thread = Thread(target=self._run, name="writer")

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"%d" % number
            self._producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.001)
        assert self._producer.flush(60) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))


def read_all(cluster: OurCluster, **settings: Any) -> dict[tuple[int, int], bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none", **settings})
    ends = {}
    for index in range(PARTITIONS):
        first, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, index), 20)
        ends[index] = end - first
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: dict[tuple[int, int], bytes] = {}
    deadline = time.monotonic() + 60
    while len(found) < sum(ends.values()) and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


def log_bytes(cluster: OurCluster, index: int) -> list[bytes]:
    return [
        b"".join(path.read_bytes() for path in sorted((broker.data_dir / f"{TOPIC}-{index}").glob("*.log")))
        for broker in cluster
    ]


def test_what_was_acknowledged_outlives_kills_of_leaders(cluster: OurCluster) -> None:
    make_topic(cluster)
    with Writer(cluster) as writer:
        for _ in range(3):
            count = len(writer.acknowledged)
            wait_until(lambda count=count: len(writer.acknowledged) > count + 200, what="records are acknowledged")
            victim = cluster[states(cluster)[0].leader]
            victim.kill()
            wait_until(lambda: all(each.leader > 0 for each in states(cluster).values()), what="new leaders")
            count = len(writer.acknowledged)
            wait_until(lambda count=count: len(writer.acknowledged) > count + 200, what="records without it")
            victim.restart()
            wait_until(lambda: in_sync(cluster), 60, "it is in sync again")
    found = read_all(cluster)
    for index, offset, value in writer.acknowledged:
        assert found[index, offset] == value
    assert len(set(found.values())) == len(found), "a record is there twice"
    for index in range(PARTITIONS):
        wait_until(lambda index=index: len(set(log_bytes(cluster, index))) == 1, what="replicas of the same bytes")


def test_consumers_read_from_the_replica_in_their_rack(cluster: OurCluster) -> None:
    make_topic(cluster)
    with Writer(cluster) as writer:
        wait_until(lambda: len(writer.acknowledged) > 500, what="records")
    for rack in ("rack1", "rack2", "rack3", "elsewhere"):
        found = read_all(cluster, **{"client.rack": rack})
        assert all(found[index, offset] == value for index, offset, value in writer.acknowledged)


def test_deleted_records_are_gone_at_every_replica(cluster: OurCluster) -> None:
    make_topic(cluster)
    with Writer(cluster) as writer:
        wait_until(lambda: len(writer.acknowledged) > 500, what="records")
    client = admin(cluster)
    for future in client.delete_records([TopicPartition(TOPIC, 0, 50)]).values():
        assert future.result(30).low_watermark == 50
    found = read_all(cluster, **{"auto.offset.reset": "earliest"})
    assert min(offset for index, offset in found if index == 0) == 50
