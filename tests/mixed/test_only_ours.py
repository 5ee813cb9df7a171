"""What only we can do: on while all brokers are ours, off while Apache Kafka is in the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.mixed.clients import produce
from tests.support.broker import wait_until
from tests.support.cluster import KAFKA, OURS, Cluster
from tests.support.java import need_java
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(240)

UNSUPPORTED_VERSION = 35
CONSUMER_PROTOCOL = {68, 69}
GROUP = 32
OFF, ON = "off from now on: the consumer protocol", "on from now on: the consumer protocol"


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    """Two of ours; 3 is an Apache Kafka to come."""
    need_java("3.9.2")
    settings = {"offsets.topic.replication.factor": "2", "group.consumer.heartbeat.interval.ms": "500"}
    settings |= {"group.consumer.min.heartbeat.interval.ms": "100"}
    own = dict.fromkeys((1, 2), settings)
    with Cluster(tmp_path, zookeeper, {1: OURS, 2: OURS, 3: KAFKA}, broker_settings=own, later=[3]) as running:
        yield running


@contextmanager
def member(cluster: Cluster, group: str, protocol: str) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": cluster.brokers[1].address, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"group.protocol": protocol, "enable.auto.commit": False})
    consumer.subscribe(["t"])
    try:
        yield consumer
    finally:
        consumer.close()


def take(consumer: Consumer, count: int) -> None:
    got = 0

    def some() -> bool:
        nonlocal got
        message = consumer.poll(0.2)
        got += message is not None and message.error() is None
        return got == count

    wait_until(some, 60, f"{count} records")
    consumer.commit(asynchronous=False)


def served(cluster: Cluster, broker_id: int) -> bool:
    """Advertised and answered alike."""
    with cluster.client(broker_id) as client:
        advertised = set(client.api_versions()) & CONSUMER_PROTOCOL
        error = client.call("ConsumerGroupDescribe", 0, {"GroupIds": ["watched"]})["Groups"][0]["ErrorCode"]
        settings = client.call("DescribeConfigs", 1, {"Resources": [group_settings()]})["Results"][0]["Configs"]
    on = advertised == CONSUMER_PROTOCOL
    assert on or not advertised
    assert (error != UNSUPPORTED_VERSION) == on == bool(settings), (advertised, error, settings)
    return on


def group_settings() -> dict[str, Any]:
    return {"ResourceType": GROUP, "ResourceName": "watched", "ConfigurationKeys": None}


def told(cluster: Cluster, line: str) -> list[int]:
    """How often each of ours has said it."""
    return [cluster.brokers[broker_id].log_text().count(line) for broker_id in (1, 2)]


def test_the_consumer_protocol_waits_until_the_last_kafka_has_gone(cluster: Cluster) -> None:
    cluster.create_topic("t", {0: [1, 2], 1: [2, 1]})
    produce(cluster, "t", "before", 20)
    assert served(cluster, 1) and served(cluster, 2)
    with member(cluster, "watched", "consumer") as consumer:
        take(consumer, 20)
        assert told(cluster, OFF) == told(cluster, ON) == [0, 0]

        cluster.start(3)
        wait_until(lambda: not served(cluster, 1) and not served(cluster, 2), 20, "the end of the consumer protocol")
        assert told(cluster, OFF) == [1, 1]
        assert sum(told(cluster, "Group watched is of the consumer protocol")) == 1
    with member(cluster, "other", "classic") as consumer:
        take(consumer, 20)

    cluster.stop(3)
    wait_until(lambda: served(cluster, 1) and served(cluster, 2), 20, "the consumer protocol")
    assert told(cluster, ON) == told(cluster, OFF) == [1, 1]
    produce(cluster, "t", "after", 20)
    with member(cluster, "watched", "consumer") as consumer:
        take(consumer, 20)
