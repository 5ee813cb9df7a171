"""What the tests of a controller ask of a cluster of both kinds: requests to one broker, nodes in ZooKeeper, and
whether all brokers tell clients the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.support.broker import BrokerProcess, wait_until
from tests.support.cluster import KAFKA, OURS, Cluster
from tests.support.kafka import KafkaBroker
from tests.support.records import batch
from tests.support.zookeeper import ZooKeeperServer

Values = dict[str, Any]
SETTINGS = {
    "zookeeper.session.timeout.ms": "18000",
    "replica.lag.time.max.ms": "4000",
    "log.cleaner.dedupe.buffer.size": "2097152",  # a change of the cleaner's settings allocates it once more
    "log.flush.offset.checkpoint.interval.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "auto.create.topics.enable": "true",
}
RETRIABLE = (3, 5, 6, 14, 15, 16, 41, 74, 95, 100)


class Mixed(Cluster):
    """Ours start first, so that the first of them is the controller; Kafka's brokers have two log directories each."""

    def __init__(
        self,
        work: Path,
        zookeeper: ZooKeeperServer,
        ours: Iterable[int],
        kafkas: Iterable[int],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        kinds = dict.fromkeys(ours, OURS) | dict.fromkeys(kafkas, KAFKA)
        directories = {each: f"{work}/kafka-{each}/x,{work}/kafka-{each}/y" for each in kinds}
        own = {each: {"log.dirs": directories[each]} for each, kind in kinds.items() if kind == KAFKA}
        super().__init__(work, zookeeper, kinds, SETTINGS | dict(settings or {}), own)
        self.work = work

    def __enter__(self) -> Mixed:
        self._store = self.zookeeper.client()
        try:
            for broker_id in self.of(OURS):
                self.start(broker_id)
            self.start(*self.of(KAFKA))
        except BaseException:
            self.close()
            raise
        return self

    def kafka(self, broker_id: int) -> KafkaBroker:
        broker = self.brokers[broker_id]
        assert isinstance(broker, KafkaBroker)
        return broker

    def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            broker = self.brokers[broker_id]
            if isinstance(broker, BrokerProcess) and broker.port:
                broker.wanted_port = broker.port
        super().start(*broker_ids)

    def kill(self, broker_id: int) -> None:
        """Its session ends at once."""
        super().kill(broker_id)
        ending = self._store.transaction()
        ending.delete(f"{self.chroot}/brokers/ids/{broker_id}")
        if self.controller_id() == broker_id:
            ending.delete(f"{self.chroot}/controller")
        assert set(ending.commit()) == {True}

    def move_controller(self, wanted: int) -> None:
        """Returns when every broker knows the wanted one as the controller."""
        self.make_controller(wanted)
        for broker_id in self.running():
            known = partial(self.metadata, broker_id)
            wait_until(
                lambda known=known: known()["ControllerId"] == wanted, 30, f"broker {broker_id} to know the controller"
            )

    # ZooKeeper
    def nodes(self) -> dict[str, Any]:
        """The JSON of every node, None where there is none."""
        return {path: _json(data) for path, (data, _) in self.zookeeper.tree(self.chroot).items()}

    def topic_node(self, topic: str) -> Values:
        found: Values = json.loads(self.node(f"/brokers/topics/{topic}") or b"{}")
        return found

    def every_state(self) -> dict[str, tuple[int, int, list[int]]]:
        """Leader, leader epoch and ISR of every partition, by the path of its state."""
        states = {path: value for path, value in self.nodes().items() if path.endswith("/state")}
        return {path: (each["leader"], each["leader_epoch"], sorted(each["isr"])) for path, each in states.items()}

    def put(self, path: str, value: str) -> None:
        self._store.create(self.chroot + path, value.encode())

    # requests
    def call(self, broker_id: int, api: str, version: int, values: Values) -> Values:
        with self.client(broker_id) as client:
            return client.call(api, version, values)

    def metadata(self, broker_id: int, *topics: str) -> Values:
        asked = [{"Name": topic} for topic in topics] or None
        return self.call(broker_id, "Metadata", 10, {"Topics": asked, "AllowAutoTopicCreation": False})

    def partitions(self, broker_id: int, topic: str) -> dict[int, Values]:
        """A topic's partitions as a broker tells clients of them; empty where it does not know it."""
        (found,) = self.metadata(broker_id, topic)["Topics"]
        return {each["PartitionIndex"]: each for each in found["Partitions"]}

    def create(self, topic: str, assignment: list[list[int]], **configs: str) -> None:
        """Returns when all running brokers know all leaders."""
        self.create_topic(topic, dict(enumerate(assignment)), **configs)
        self.wait_led(topic, len(assignment))

    def wait_led(self, topic: str, count: int) -> None:
        def led(broker_id: int) -> bool:
            found = self.partitions(broker_id, topic)
            return len(found) == count and all(each["LeaderId"] >= 0 for each in found.values())

        for broker_id in self.running():
            wait_until(lambda broker_id=broker_id: led(broker_id), 30, f"leaders of {topic} at broker {broker_id}")

    def begin_deletion(self, topic: str) -> None:
        (answer,) = self.ask_controller("DeleteTopics", 4, {"TopicNames": [topic], "TimeoutMs": 0})["Responses"]
        assert answer["ErrorCode"] in (0, 7), answer  # 7: not done within the time given

    def delete(self, topic: str) -> None:
        self.begin_deletion(topic)
        self.wait_deleted(topic)

    def wait_deleted(self, topic: str) -> None:
        """From ZooKeeper, from what brokers know, and from their disks."""
        for path in (f"/brokers/topics/{topic}", f"/admin/delete_topics/{topic}"):
            wait_until(lambda path=path: self.node(path) is None, 40, f"{path} to go")
        for broker_id in self.running():
            known = partial(self.partitions, broker_id, topic)
            wait_until(lambda known=known: not known(), 20, f"broker {broker_id} to forget {topic}")
            lies = partial(self.folders, broker_id, f"{topic}-[0-9]")
            wait_until(lambda lies=lies: not lies(), 20, f"broker {broker_id} to delete {topic}")

    def folders(self, broker_id: int, pattern: str) -> list[Path]:
        """Partitions' directories."""
        if self.kinds[broker_id] == OURS:
            return list(self.brokers[broker_id].data_dir.glob(pattern))
        return list(self.work.glob(f"kafka-{broker_id}/[xy]/{pattern}"))

    def cancel(self, topic: str, partition: int) -> int:
        asked = [{"Name": topic, "Partitions": [{"PartitionIndex": partition, "Replicas": None}]}]
        answer = self.ask_controller("AlterPartitionReassignments", 0, {"TimeoutMs": 10000, "Topics": asked})
        return int(answer["Responses"][0]["Partitions"][0]["ErrorCode"])

    def prefer(self, topic: str, *partitions: int) -> dict[int, int]:
        """Preferred elections: the errors."""
        values = {"ElectionType": 0, "TopicPartitions": [{"Topic": topic, "Partitions": list(partitions)}]}
        answer = self.ask_controller("ElectLeaders", 2, values | {"TimeoutMs": 10000})
        assert answer["ErrorCode"] == 0, answer
        (found,) = answer["ReplicaElectionResults"]
        return {each["PartitionId"]: each["ErrorCode"] for each in found["PartitionResult"]}

    def restore_leaders(self, topic: str) -> None:
        """The first replicas lead again, when all are in sync; every broker knows."""
        self.wait_in_sync(topic)
        wanted = {index: replicas[0] for index, replicas in self.assignment(topic).items()}

        def restored() -> bool:
            assert set(self.prefer(topic, *wanted).values()) <= {0, 80, 84}  # 80: one has just left the ISR
            return {index: state.leader for index, state in self.states(topic).items()} == wanted

        wait_until(restored, 40, f"the preferred leaders of {topic}")
        self.wait_leaders(topic, wanted)

    def configure(self, broker_id: int, kind: int, name: str, **config: str) -> None:
        configs = [
            {"Name": key.replace("_", "."), "ConfigOperation": 0, "Value": value} for key, value in config.items()
        ]
        asked = {"ResourceType": kind, "ResourceName": name, "Configs": configs}
        (answer,) = self.call(broker_id, "IncrementalAlterConfigs", 1, {"Resources": [asked]})["Responses"]
        assert answer["ErrorCode"] == 0, answer

    def config(self, broker_id: int, kind: int, name: str, setting: str) -> str:
        asked = {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": [setting]}
        (described,) = self.call(broker_id, "DescribeConfigs", 1, {"Resources": [asked]})["Results"]
        return str(described["Configs"][0]["Value"])

    def produce(self, topic: str, partition: int, value: bytes, acks: int = -1) -> int:
        """At the leader; the record's offset. Tried again while there is none that takes it."""
        found: list[Values] = []

        def done() -> bool:
            found[:] = [self._produce_once(topic, partition, value, acks)]
            assert found[0]["ErrorCode"] in (0, *RETRIABLE), found
            return bool(found[0]["ErrorCode"] == 0)

        wait_until(done, 40, f"a record in {topic}-{partition}")
        return int(found[0]["BaseOffset"])

    def _produce_once(self, topic: str, partition: int, value: bytes, acks: int) -> Values:
        leader = self.states(topic)[partition].leader
        if leader not in self.running():
            return {"ErrorCode": 5}
        with self.client(leader) as client:
            return client.produce(topic, batch([value]), partition=partition, acks=acks, version=8)

    def read(self, topic: str, partition: int, offset: int) -> bytes:
        """The leader's batches from an offset on."""
        part = {"Partition": partition, "CurrentLeaderEpoch": -1, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
        values = {"ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionEpoch": -1}
        asked = values | {"Topics": [{"Topic": topic, "Partitions": [part]}]}
        answer = self.call(self.states(topic)[partition].leader, "Fetch", 11, asked)
        return bytes(answer["Responses"][0]["Partitions"][0]["Records"] or b"")

    def wait_view(self, topic: str, wanted: dict[int, Any], key: Callable[[Values], Any]) -> None:
        """Every running broker tells this of each partition."""

        def told() -> bool:
            return all(
                {index: key(each) for index, each in self.partitions(broker_id, topic).items()} == wanted
                for broker_id in self.running()
            )

        wait_until(told, 40, f"{wanted} told of {topic}")

    def wait_leaders(self, topic: str, wanted: dict[int, int]) -> None:
        self.wait_view(topic, wanted, itemgetter("LeaderId"))

    def wait_replicas(self, topic: str, wanted: dict[int, list[int]]) -> None:
        """In any order."""
        self.wait_view(topic, wanted, lambda each: sorted(each["ReplicaNodes"]))

    def wait_all_told(self, topic: str) -> None:
        """Every running broker tells what ZooKeeper says."""
        wanted = {index: (state.leader, state.leader_epoch) for index, state in self.states(topic).items()}
        self.wait_view(topic, wanted, itemgetter("LeaderId", "LeaderEpoch"))


def _json(data: bytes | None) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data
