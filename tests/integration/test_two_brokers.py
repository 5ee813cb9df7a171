"""Two brokers under one ZooKeeper: what either knows, makes and leads; and the controller's moves between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.broker import BrokerProcess, wait_until
from tests.support.local_cluster import OurCluster
from tests.support.records import batch
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(180)

NOT_CONTROLLER, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER = 41, 5, 6


@pytest.fixture
def chroot(tmp_path: Path) -> str:
    return f"/two{tmp_path}"


@pytest.fixture
def pair(
    zookeeper: ZooKeeperServer, tmp_path: Path, chroot: str, request: pytest.FixtureRequest
) -> Iterator[OurCluster]:
    """Brokers 1, the controller, and 2; the parameter is their inter.broker.protocol.version."""
    settings = {
        "zookeeper.session.timeout.ms": 2000,
        "offsets.topic.replication.factor": 1,
        "inter.broker.protocol.version": getattr(request, "param", "3.9"),
    }
    with OurCluster(f"{zookeeper.address}{chroot}", tmp_path, settings, count=2) as cluster:
        yield cluster


def metadata(broker: BrokerProcess, *topics: str) -> dict[str, Any]:
    asked = [{"Name": topic} for topic in topics] or None
    with broker.client() as client:
        return client.call("Metadata", 12, {"Topics": asked, "AllowAutoTopicCreation": True})


def leaders(broker: BrokerProcess, topic: str) -> dict[int, int]:
    """Partition → leader, empty while there is none for some."""
    (found,) = metadata(broker, topic)["Topics"]
    known = {each["PartitionIndex"]: each["LeaderId"] for each in found["Partitions"] if not each["ErrorCode"]}
    return known if len(known) == len(found["Partitions"]) else {}


def make_topic(pair: OurCluster, topic: str, partitions: int, **config: str) -> dict[int, int]:
    """Made over broker 2; the leaders, when both brokers know them."""
    named = NewTopic(topic, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin = AdminClient({"bootstrap.servers": pair[2].address})
    admin.create_topics([named])[topic].result(30)
    for broker in pair:
        wait_until(lambda broker=broker: len(leaders(broker, topic)) == partitions, 20, "the leaders")
    return leaders(pair[2], topic)


def produce(address: str, topic: str, partition: int, values: list[bytes]) -> None:
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(20) == 0
    assert failures == [None] * len(values)


def consume(address: str, topic: str, partition: int, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        messages = consumer.consume(count, timeout=20)
        assert not [message.error() for message in messages if message.error()]
        return [message.value() for message in messages]
    finally:
        consumer.close()


def test_both_know_both(pair: OurCluster) -> None:
    ports = {broker_id: broker.port for broker_id, broker in pair.brokers.items()}
    for broker in pair:
        known = wait_until(lambda broker=broker: both(broker), 20, "both brokers")
        assert {each["NodeId"]: each["Port"] for each in known["Brokers"]} == ports
        assert known["ControllerId"] == 1


def both(broker: BrokerProcess) -> dict[str, Any] | None:
    known = metadata(broker)
    return known if len(known["Brokers"]) == 2 else None


@pytest.mark.parametrize("pair", ["3.9-IV0", "2.8", "2.6"], indirect=True)
def test_partitions_are_spread_and_served_where_they_lie(pair: OurCluster) -> None:
    found = make_topic(pair, "spread", 4)
    assert sorted(found.values()) == [1, 1, 2, 2]
    assert leaders(pair[1], "spread") == found
    for partition, leader in found.items():
        values = [b"%d-%d" % (partition, number) for number in range(50)]
        produce(pair[1].address, "spread", partition, values)
        assert consume(pair[2].address, "spread", partition, 50) == values
        for broker_id, broker in pair.brokers.items():
            assert (broker.data_dir / f"spread-{partition}").is_dir() == (broker_id == leader)
            if broker_id != leader:
                with broker.client() as client:
                    answer = client.produce("spread", batch([b"x"]), partition=partition)
                assert answer["ErrorCode"] == NOT_LEADER_OR_FOLLOWER


def test_settings_of_a_topic_are_known_to_who_did_not_make_it(
    pair: OurCluster, zookeeper: ZooKeeperServer, chroot: str
) -> None:
    make_topic(pair, "set", 2, retention_ms="7777777")
    for broker in pair:
        assert retention(broker, "set") == "7777777"
    with pair[1].client() as client:
        config = [{"Name": "retention.ms", "ConfigOperation": 0, "Value": "8888888"}]
        asked = {"ResourceType": 2, "ResourceName": "set", "Configs": config}
        client.call("IncrementalAlterConfigs", 1, {"Resources": [asked]})
    for broker in pair:
        wait_until(lambda broker=broker: retention(broker, "set") == "8888888", 20, "the change")
    admin = AdminClient({"bootstrap.servers": pair[2].address})
    admin.delete_topics(["set"])["set"].result(30)
    for broker in pair:
        wait_until(lambda broker=broker: not metadata(broker)["Topics"], 20, "the deletion")
    wait_until(lambda: "/brokers/topics/set" not in zookeeper.tree(chroot), 20, "the end of the deletion")
    make_topic(pair, "set", 2)
    for broker in pair:
        assert retention(broker, "set") == "604800000"


def retention(broker: BrokerProcess, topic: str) -> str:
    asked = {"ResourceType": 2, "ResourceName": topic, "ConfigurationKeys": ["retention.ms"]}
    with broker.client() as client:
        (described,) = client.call("DescribeConfigs", 1, {"Resources": [asked]})["Results"]
    return str(described["Configs"][0]["Value"])


def test_only_the_controller_makes_topics_and_deletes_them(pair: OurCluster) -> None:
    make_topic(pair, "there", 1)
    with pair[2].client() as client:
        (created,) = client.call("CreateTopics", 5, creation("t"))["Topics"]
        assert created["ErrorCode"] == NOT_CONTROLLER
        (deleted,) = client.call("DeleteTopics", 4, {"TopicNames": ["there"], "TimeoutMs": 1000})["Responses"]
        assert deleted["ErrorCode"] == NOT_CONTROLLER
        more = {"Topics": [{"Name": "there", "Count": 2, "Assignments": None}], "TimeoutMs": 1000}
        (extended,) = client.call("CreatePartitions", 1, more)["Results"]
        assert extended["ErrorCode"] == NOT_CONTROLLER
        assert client.call("AlterPartition", 3, {"BrokerId": 2, "BrokerEpoch": 1})["ErrorCode"] == NOT_CONTROLLER
        allocated = client.call("AllocateProducerIds", 0, {"BrokerId": 2, "BrokerEpoch": 1})
        assert allocated["ErrorCode"] == NOT_CONTROLLER
    with pair[1].client() as client:
        (created,) = client.call("CreateTopics", 5, creation("t"))["Topics"]
        assert created["ErrorCode"] == 0


def creation(topic: str) -> dict[str, Any]:
    return {"Topics": [{"Name": topic, "NumPartitions": 1, "ReplicationFactor": 1}], "timeoutMs": 5000}


def test_any_broker_makes_a_topic_that_is_asked_for(pair: OurCluster) -> None:
    (first,) = metadata(pair[2], "automatic")["Topics"]
    assert first["ErrorCode"] in (LEADER_NOT_AVAILABLE, 0)
    for broker in pair:
        wait_until(lambda broker=broker: len(leaders(broker, "automatic")) == 1, 20, "the topic")
    produce(pair[1].address, "automatic", 0, [b"x"])
    assert consume(pair[2].address, "automatic", 0, 1) == [b"x"]


def test_a_group_finds_its_coordinator_over_either(pair: OurCluster) -> None:
    make_topic(pair, "grouped", 4)
    for partition in range(4):
        produce(pair[1].address, "grouped", partition, [b"a", b"b"])
    for broker in pair:
        consumer = Consumer(
            {"bootstrap.servers": broker.address, "group.id": f"of-{broker.port}", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["grouped"])
        got: list[bytes | None] = []
        wait_until(lambda got=got, consumer=consumer: len(take(consumer, got)) == 8, 30, "the records")
        consumer.commit(asynchronous=False)
        consumer.close()


def take(consumer: Consumer, got: list[bytes | None]) -> list[bytes | None]:
    message = consumer.poll(0.1)
    if message is not None and not message.error():
        got.append(message.value())
    return got


def test_producer_ids_are_never_the_same(pair: OurCluster) -> None:
    asked = {"TransactionalId": None, "TransactionTimeoutMs": 60000, "ProducerId": -1, "ProducerEpoch": -1}
    given = []
    for broker in pair:
        with broker.client() as client:
            given += [client.call("InitProducerId", 3, asked)["ProducerId"] for _ in range(3)]
    assert len(set(given)) == 6


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_other_takes_over_as_controller(
    pair: OurCluster, zookeeper: ZooKeeperServer, chroot: str, how: str
) -> None:
    found = make_topic(pair, "moved", 2)
    here = next(partition for partition, leader in found.items() if leader == 2)
    gone = 1 - here
    pair[1].kill() if how == "killed" else pair[1].stop()
    wait_until(lambda: metadata(pair[2])["ControllerId"] == 2, 30, "the new controller")
    assert json.loads(zookeeper.tree(chroot)["/controller"][0] or b"")["brokerid"] == 2
    produce(pair[2].address, "moved", here, [b"still here"])
    wait_until(lambda: offline(pair[2], "moved", gone), 20, "the loss being told")
    assert [each["NodeId"] for each in metadata(pair[2])["Brokers"]] == [2]
    with pair[2].client() as client:
        (created,) = client.call("CreateTopics", 5, creation("after"))["Topics"]
        assert created["ErrorCode"] == 0

    pair[1].wanted_port = pair[1].port
    pair[1].start()
    wait_until(lambda: leaders(pair[1], "moved") == found, 20, "the return")
    assert metadata(pair[1])["ControllerId"] == 2
    produce(pair[2].address, "moved", gone, [b"back"])
    assert consume(pair[1].address, "moved", here, 1) == [b"still here"]


def offline(broker: BrokerProcess, topic: str, partition: int) -> list[dict[str, Any]] | None:
    """The topic, once the partition has no leader."""
    found: list[dict[str, Any]] = metadata(broker, topic)["Topics"]
    (state,) = (each for each in found[0]["Partitions"] if each["PartitionIndex"] == partition)
    return found if state["LeaderId"] == -1 and state["ErrorCode"] == LEADER_NOT_AVAILABLE else None
