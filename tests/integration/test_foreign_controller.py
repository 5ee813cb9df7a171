"""The test plays a controller over a broker, and a leader and a newcomer to its controller: answers as Kafka 3.9.2 gave
them in the same situations (ZooKeeper mode), over real connections in every version."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient

ID = bytes.fromhex("11111111222243338444555555555555")
OTHER_ID = bytes.fromhex("99999999222243338444555555555555")
STALE_CONTROLLER_EPOCH, FENCED_LEADER_EPOCH, STALE_BROKER_EPOCH, INCONSISTENT_TOPIC_ID = 11, 74, 77, 103
HERE, CONTROLLER = 1, 8

Values = dict[str, Any]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"broker.id": HERE}) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with broker.client(client_id=str(CONTROLLER)) as connected:
        yield connected


class Orders:
    """Sends the orders of controller 8, of an epoch above that of the broker's own controller."""

    def __init__(self, client: WireClient, epoch: int = 5) -> None:
        self.client = client
        self.epoch = epoch

    def head(self, **values: Any) -> Values:
        return {"ControllerId": CONTROLLER, "ControllerEpoch": self.epoch, "BrokerEpoch": 1 << 40} | values

    def lead(self, version: int, leader_epoch: int, **values: Any) -> Values:
        """LeaderAndIsr of fc-0 and fc-1, led by the broker."""
        topic_id, replicas = values.pop("topic_id", ID), values.pop("replicas", [HERE, CONTROLLER])
        partitions = [
            {
                "TopicName": "fc",
                "PartitionIndex": index,
                "ControllerEpoch": self.epoch,
                "Leader": HERE,
                "LeaderEpoch": leader_epoch,
                "Isr": [HERE],
                "PartitionEpoch": leader_epoch,
                "Replicas": replicas,
                "isNew": False,
            }
            for index in (0, 1)
        ]
        grouped = [{"TopicName": "fc", "TopicId": topic_id, "PartitionStates": partitions}]
        leaders = [{"BrokerId": HERE, "HostName": "127.0.0.1", "Port": 1}]
        shapes = {"UngroupedPartitionStates": partitions, "TopicStates": grouped, "LiveLeaders": leaders}
        return self.client.call("LeaderAndIsr", version, self.head(**shapes) | values)

    def stop(
        self, version: int, leader_epoch: int, *, topic: str = "fc", delete: bool = False, **values: Any
    ) -> Values:
        """StopReplica of the topic's partition 0."""
        state = {"PartitionIndex": 0, "LeaderEpoch": leader_epoch, "DeletePartition": delete}
        shapes = {
            "DeletePartitions": delete,
            "UngroupedPartitions": [{"TopicName": topic, "PartitionIndex": 0}],
            "Topics": [{"Name": topic, "PartitionIndexes": [0]}],
            "TopicStates": [{"TopicName": topic, "PartitionStates": [state]}],
        }
        return self.client.call("StopReplica", version, self.head(**shapes) | values)

    def tell(self, version: int, leader: int = HERE, **values: Any) -> Values:
        """UpdateMetadata of fc-0, and of brokers 1 and 8."""
        partition = {
            "TopicName": "fc",
            "PartitionIndex": 0,
            "ControllerEpoch": self.epoch,
            "Leader": leader,
            "LeaderEpoch": 3,
            "Isr": [HERE],
            "ZkVersion": 1,
            "Replicas": [HERE, CONTROLLER],
        }
        brokers = [
            {
                "Id": each,
                "V0Host": "127.0.0.1",
                "V0Port": 10 + each,
                "Endpoints": [{"Port": 10 + each, "Host": "127.0.0.1", "Listener": "PLAINTEXT", "SecurityProtocol": 0}],
                "Rack": "r",
            }
            for each in (HERE, CONTROLLER)
        ]
        shapes = {
            "UngroupedPartitionStates": [partition],
            "TopicStates": [{"TopicName": "fc", "TopicId": ID, "PartitionStates": [partition]}],
            "LiveBrokers": brokers,
        }
        return self.client.call("UpdateMetadata", version, self.head(**shapes) | values)


@pytest.fixture
def orders(client: WireClient) -> Orders:
    return Orders(client)


def by_id(error: int, topic_id: bytes = ID, whole: int = 0) -> Values:
    errors = [{"PartitionIndex": index, "ErrorCode": error} for index in (0, 1)]
    return {"ErrorCode": whole, "Topics": [{"TopicId": topic_id, "PartitionErrors": errors}]}


def test_leader_and_isr(orders: Orders, broker: BrokerProcess) -> None:
    assert orders.lead(7, 1) == by_id(0)
    assert orders.lead(7, 1) == by_id(STALE_CONTROLLER_EPOCH), "the same leader epoch again"
    assert orders.lead(7, 0) == by_id(STALE_CONTROLLER_EPOCH), "a lower leader epoch"
    assert orders.lead(7, 2, topic_id=OTHER_ID) == by_id(INCONSISTENT_TOPIC_ID, OTHER_ID)
    assert orders.lead(7, 2, LiveLeaders=[]) == by_id(0)
    assert orders.lead(7, 3, replicas=[CONTROLLER]) == {"ErrorCode": 0, "Topics": []}
    assert orders.lead(7, 3, isKRaftController=True) == by_id(-1, whole=-1)
    assert orders.lead(7, 3, ControllerEpoch=4) == by_id(STALE_CONTROLLER_EPOCH, whole=STALE_CONTROLLER_EPOCH)
    assert orders.lead(7, 3, BrokerEpoch=0) == by_id(STALE_BROKER_EPOCH, whole=STALE_BROKER_EPOCH)
    assert orders.lead(7, 3, BrokerEpoch=-1) == by_id(0)
    assert (broker.data_dir / "fc-0").is_dir() and (broker.data_dir / "fc-1").is_dir()


def test_every_version_of_leader_and_isr(orders: Orders, broker: BrokerProcess) -> None:
    for version in range(5):
        named = [{"TopicName": "fc", "PartitionIndex": index, "ErrorCode": 0} for index in (0, 1)]
        assert orders.lead(version, version) == {"ErrorCode": 0, "PartitionErrors": named}
    for version in range(5, 8):
        assert orders.lead(version, version) == by_id(0)
    text = (broker.data_dir / "fc-0" / "partition.metadata").read_text()
    assert text.endswith("topic_id: " + base64.urlsafe_b64encode(ID).decode().rstrip("=")), "it came late"
    assert orders.lead(4, 8)["PartitionErrors"][0]["ErrorCode"] == 0, "and stays where none is named"
    assert orders.lead(7, 9, topic_id=OTHER_ID) == by_id(INCONSISTENT_TOPIC_ID, OTHER_ID)


def test_stop_replica(orders: Orders, broker: BrokerProcess) -> None:
    def answer(error: int, topic: str = "fc") -> Values:
        return {
            "ErrorCode": 0,
            "PartitionErrors": [{"TopicName": topic, "PartitionIndex": 0, "ErrorCode": error}],
        }

    orders.lead(7, 3)
    refused: Values = {"PartitionErrors": []}
    assert orders.stop(4, 3, ControllerEpoch=4) == refused | {"ErrorCode": STALE_CONTROLLER_EPOCH}
    assert orders.stop(4, 3, BrokerEpoch=0) == refused | {"ErrorCode": STALE_BROKER_EPOCH}
    assert orders.stop(4, 2) == answer(FENCED_LEADER_EPOCH)
    assert orders.stop(4, 0, topic="ghost") == answer(0, "ghost")
    assert orders.stop(4, 3) == answer(0)
    assert (broker.data_dir / "fc-0").is_dir()
    assert orders.lead(7, 3) == by_id(STALE_CONTROLLER_EPOCH), "it remembers the leader epoch"
    assert orders.lead(7, 4) == by_id(0)
    above, same, unknown, deleted = 1, 0, -1, -2
    for turn, (version, kind) in enumerate(((4, above), (4, unknown), (4, deleted), (3, same), (2, 0), (1, 0), (0, 0))):
        leader_epoch = 10 + turn
        orders.lead(7, leader_epoch)
        assert (broker.data_dir / "fc-0").is_dir()
        assert orders.stop(version, kind if kind < 0 else leader_epoch + kind, delete=True) == answer(0), version
        assert not (broker.data_dir / "fc-0").exists()


def test_update_metadata(orders: Orders, client: WireClient) -> None:
    assert orders.tell(8) == {"ErrorCode": 0}
    metadata = client.call("Metadata", 12, {"Topics": None})
    assert [(each["NodeId"], each["Port"]) for each in metadata["Brokers"]] == [(1, 11), (8, 18)]
    assert metadata["ControllerId"] == CONTROLLER
    assert [(topic["Name"], topic["TopicId"]) for topic in metadata["Topics"]] == [("fc", ID)]
    for version in range(8):
        assert orders.tell(version) == {"ErrorCode": 0}, version
    (topic,) = client.call("Metadata", 12, {"Topics": None})["Topics"]
    assert topic["TopicId"] == ID, "versions without ids leave it as it is"
    assert orders.tell(8, ControllerEpoch=4) == {"ErrorCode": STALE_CONTROLLER_EPOCH}
    assert orders.tell(8, BrokerEpoch=0) == {"ErrorCode": STALE_BROKER_EPOCH}
    assert orders.tell(8, BrokerEpoch=-1) == {"ErrorCode": 0}
    assert orders.tell(8, isKRaftController=True) == {"ErrorCode": -1}
    assert orders.tell(8, leader=-2) == {"ErrorCode": 0}
    assert client.call("Metadata", 12, {"Topics": None})["Topics"] == []


def test_a_controller_epoch_counts_whatever_the_order(orders: Orders) -> None:
    assert Orders(orders.client, 7).lead(6, 1) == by_id(0)
    assert orders.tell(8) == {"ErrorCode": STALE_CONTROLLER_EPOCH}
    assert orders.stop(4, 1) == {"ErrorCode": STALE_CONTROLLER_EPOCH, "PartitionErrors": []}


def test_brokers_that_are_not_registered_are_refused(client: WireClient) -> None:
    """The error stands at the top of the answer."""
    for api, version in (("AlterPartition", 3), ("AlterPartition", 0)):
        asked = {"BrokerId": 9, "BrokerEpoch": 5}
        assert client.call(api, version, asked) == {"ThrottleTimeMs": 0, "ErrorCode": STALE_BROKER_EPOCH, "Topics": []}
    assert client.call("AllocateProducerIds", 0, {"BrokerId": 9, "BrokerEpoch": 5})["ErrorCode"] == 102
    assert client.call("AllocateProducerIds", 0, {"BrokerId": HERE, "BrokerEpoch": 0})["ErrorCode"] == 77


def test_a_leader_changes_the_isr(client: WireClient) -> None:
    """Of the only broker's own topic, with that broker's epoch."""
    client.create_topic("t")
    (topic,) = client.call("Metadata", 12, {"Topics": [{"Name": "t"}]})["Topics"]
    epoch = next(e for e in range(1, 200) if ask(client, 3, e, [])["ErrorCode"] == 0)

    def alter(version: int, **values: Any) -> Values:
        partition: Values = {"PartitionIndex": 0, "LeaderEpoch": 0, "PartitionEpoch": 0, "NewIsr": [HERE]}
        partition |= {"NewIsrWithEpochs": [{"BrokerId": HERE, "BrokerEpoch": -1}]} | values
        named = {"TopicName": "t", "TopicId": values.get("topic_id", topic["TopicId"])}
        answer = ask(client, version, epoch, [named | {"Partitions": [partition]}])
        assert answer["ErrorCode"] == 0
        (found,) = answer["Topics"]
        answered: Values = found["Partitions"][0]
        return {key: found[key] for key in ("TopicName", "TopicId") if key in found} | answered

    for version in range(4):
        name: Values = {"TopicName": "t"} if version < 2 else {"TopicId": topic["TopicId"]}
        recovery = {"LeaderRecoveryState": 0} if version >= 1 else {}
        now = {"PartitionIndex": 0, "ErrorCode": 0, "LeaderId": HERE, "LeaderEpoch": 0, "Isr": [HERE]}
        assert alter(version) == name | now | recovery | {"PartitionEpoch": 0}
    none: Values = {"LeaderId": 0, "LeaderEpoch": 0, "Isr": [], "LeaderRecoveryState": 0, "PartitionEpoch": 0}
    none |= {"PartitionIndex": 0, "TopicId": topic["TopicId"]}
    assert alter(3, LeaderEpoch=-1) == none | {"ErrorCode": FENCED_LEADER_EPOCH}
    assert alter(3, LeaderEpoch=1) == none | {"ErrorCode": 41}
    assert alter(3, topic_id=OTHER_ID) == none | {"ErrorCode": 100, "TopicId": OTHER_ID}
    unknown = {"NewIsr": [HERE, 9], "NewIsrWithEpochs": [{"BrokerId": each, "BrokerEpoch": -1} for each in (HERE, 9)]}
    assert alter(3, **unknown) == none | {"ErrorCode": 107}
    assert alter(1, **unknown)["ErrorCode"] == 55
    block = client.call("AllocateProducerIds", 0, {"BrokerId": HERE, "BrokerEpoch": epoch})
    after = client.call("AllocateProducerIds", 0, {"BrokerId": HERE, "BrokerEpoch": epoch})
    assert (block["ErrorCode"], block["ProducerIdLen"]) == (0, 1000)
    assert after["ProducerIdStart"] == block["ProducerIdStart"] + 1000


def ask(client: WireClient, version: int, broker_epoch: int, topics: list[Values]) -> Values:
    return client.call("AlterPartition", version, {"BrokerId": HERE, "BrokerEpoch": broker_epoch, "Topics": topics})
