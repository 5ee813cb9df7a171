"""A cluster of our brokers and Apache Kafka's under one ZooKeeper, and what a test asks of it: requests of one broker,
the nodes in ZooKeeper, the view of the clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.broker import BrokerProcess, wait_until
from tests.support.kafka import KafkaBroker
from tests.support.records import batch
from tests.support.zookeeper import ZooKeeperServer

Broker = BrokerProcess | KafkaBroker
Values = dict[str, Any]
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": "4000",
    "replica.lag.time.max.ms": "3000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "auto.leader.rebalance.enable": "false",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}
RETRIABLE = (3, 5, 6, 14, 15, 16, 41, 74, 95, 100)


class Mixed:
    """Brokers by their ids. `ours` start first, so the first of them is the controller; Kafka's ids come behind."""

    def __init__(
        self,
        zookeeper: ZooKeeperServer,
        work: Path,
        ours: Iterable[int],
        kafkas: Iterable[int],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.zookeeper, self.work, self.chroot = zookeeper, work, f"/mixed{work}"
        every = SETTINGS | dict(settings or {})
        self.brokers: dict[int, Broker] = {}
        for broker_id in ours:
            own = every | {"zookeeper.connect": self.connect, "broker.id": broker_id}
            self.brokers[broker_id] = BrokerProcess(work / f"b{broker_id}", own)
        for broker_id in kafkas:
            data = work / f"b{broker_id}"
            own = every | {"log.dirs": f"{data}/x,{data}/y"}
            self.brokers[broker_id] = KafkaBroker(work / f"kafka-{broker_id}", data, self.connect, broker_id, own)
        self._stack = ExitStack()

    @property
    def connect(self) -> str:
        return f"{self.zookeeper.address}{self.chroot}"

    def __enter__(self) -> Mixed:
        ours = [broker for broker in self.brokers.values() if isinstance(broker, BrokerProcess)]
        kafkas = [broker for broker in self.brokers.values() if isinstance(broker, KafkaBroker)]
        with ExitStack() as stack:
            for broker in ours:
                stack.enter_context(broker)
            with ThreadPoolExecutor(len(kafkas) or 1) as pool:
                list(pool.map(stack.enter_context, kafkas))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers.values():
            if isinstance(broker, KafkaBroker):
                broker.kill()
        self._stack.__exit__(kind, error, trace)

    # brokers
    def running(self) -> list[int]:
        return [broker_id for broker_id, broker in self.brokers.items() if broker.process is not None]

    def start(self, broker_id: int) -> None:
        """Again, on its port, once its old session is over."""
        self.wait_gone(broker_id)
        broker = self.brokers[broker_id]
        if isinstance(broker, BrokerProcess):
            broker.wanted_port = broker.port
        broker.start()

    def wait_gone(self, broker_id: int) -> None:
        wait_until(lambda: f"/brokers/ids/{broker_id}" not in self.nodes(), 30, f"the end of broker {broker_id}")

    def move_controller(self, wanted: int) -> None:
        """Deletes /controller until the wanted broker has won the election."""
        client = self.zookeeper.client()
        try:
            def moved() -> bool:
                if self.controller() == wanted:
                    return True
                if self.controller() != -1:
                    client.delete(f"{self.chroot}/controller")
                wait_until(lambda: self.controller() != -1, 20, "a controller")
                return False

            wait_until(moved, 60, f"controller {wanted}")
        finally:
            client.stop()
            client.close()
        for broker_id in self.running():
            known = lambda broker_id=broker_id: self.metadata(broker_id)["ControllerId"] == wanted
            wait_until(known, 30, f"broker {broker_id} to know controller {wanted}")

    # ZooKeeper
    def nodes(self) -> dict[str, Any]:
        """The JSON of every node, None where there is none."""
        return {path: _json(data) for path, (data, _) in self.zookeeper.tree(self.chroot).items()}

    def controller(self) -> int:
        found = self.nodes().get("/controller")
        return -1 if found is None else int(found["brokerid"])

    def states(self, topic: str | None = None) -> dict[str, Values]:
        """State nodes by "topic-partition"."""
        found = {}
        for path, value in self.nodes().items():
            parts = path.split("/")
            if parts[-1] == "state" and (topic is None or parts[3] == topic):
                found[f"{parts[3]}-{parts[5]}"] = value
        return found

    def put(self, path: str, value: str, *, sequence: bool = False) -> None:
        client = self.zookeeper.client()
        try:
            client.create(self.chroot + path, value.encode(), sequence=sequence, makepath=True)
        finally:
            client.stop()
            client.close()

    # requests
    def call(self, broker_id: int, api: str, version: int, values: Values) -> Values:
        broker = self.brokers[broker_id]
        client = broker.client(timeout=60) if isinstance(broker, BrokerProcess) else broker.client()
        with client:
            return client.call(api, version, values)

    def ask_controller(self, api: str, version: int, values: Values) -> Values:
        return self.call(self.controller(), api, version, values)

    def metadata(self, broker_id: int, *topics: str) -> Values:
        asked = [{"Name": topic} for topic in topics] or None
        return self.call(broker_id, "Metadata", 9, {"Topics": asked, "AllowAutoTopicCreation": False})

    def partitions(self, broker_id: int, topic: str) -> dict[int, Values]:
        """A topic's partitions as a broker tells clients of them; empty where it does not know it."""
        (found,) = self.metadata(broker_id, topic)["Topics"]
        return {each["PartitionIndex"]: each for each in found["Partitions"]}

    def create(self, topic: str, assignment: list[list[int]], **config: str) -> None:
        assignments = [{"PartitionIndex": index, "BrokerIds": ids} for index, ids in enumerate(assignment)]
        configs = [{"Name": name.replace("_", "."), "Value": value} for name, value in config.items()]
        asked = {"Name": topic, "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": assignments}
        values = {"Topics": [asked | {"Configs": configs}], "timeoutMs": 30000}
        (answer,) = self.ask_controller("CreateTopics", 5, values)["Topics"]
        assert answer["ErrorCode"] == 0, answer
        self.wait_led(topic, len(assignment))

    def wait_led(self, topic: str, count: int) -> None:
        def led(broker_id: int) -> bool:
            found = self.partitions(broker_id, topic)
            return len(found) == count and all(each["LeaderId"] >= 0 for each in found.values())

        for broker_id in self.running():
            wait_until(lambda broker_id=broker_id: led(broker_id), 30, f"leaders of {topic} at broker {broker_id}")

    def wait_in_sync(self, topic: str) -> None:
        def in_sync() -> bool:
            found = self.nodes()
            replicas = found[f"/brokers/topics/{topic}"]["partitions"]
            states = self.states(topic)
            return all(sorted(states[f"{topic}-{index}"]["isr"]) == sorted(ids) for index, ids in replicas.items())

        wait_until(in_sync, 40, f"all replicas of {topic} in sync")

    def delete(self, topic: str) -> None:
        (answer,) = self.ask_controller("DeleteTopics", 4, {"TopicNames": [topic], "TimeoutMs": 1000})["Responses"]
        assert answer["ErrorCode"] in (0, 7), answer  # 7: not done within the second

    def wait_deleted(self, topic: str) -> None:
        def gone() -> bool:
            nodes = self.nodes()
            return all(f"{root}/{topic}" not in nodes for root in ("/brokers/topics", "/admin/delete_topics"))

        wait_until(gone, 40, f"the deletion of {topic}")
        for broker_id in self.running():
            known = lambda broker_id=broker_id: self.partitions(broker_id, topic)
            wait_until(lambda known=known: not known(), 20, f"broker {broker_id} to forget {topic}")
            lies = lambda broker_id=broker_id: self.folders(broker_id, f"{topic}-[0-9]")
            wait_until(lambda lies=lies: not lies(), 20, f"broker {broker_id} to delete {topic}")

    def folders(self, broker_id: int, pattern: str) -> list[Path]:
        """Partitions' directories; Kafka's brokers have two log directories, x and y."""
        data = self.work / f"b{broker_id}"
        return [*data.glob(pattern), *data.glob(f"[xy]/{pattern}")]

    def reassign(self, topic: str, moves: Mapping[int, list[int] | None]) -> list[int]:
        asked = [{"PartitionIndex": index, "Replicas": replicas} for index, replicas in moves.items()]
        values = {"TimeoutMs": 10000, "Topics": [{"Name": topic, "Partitions": asked}]}
        answer = self.ask_controller("AlterPartitionReassignments", 0, values)
        assert answer["ErrorCode"] == 0, answer
        return [each["ErrorCode"] for each in answer["Responses"][0]["Partitions"]]

    def elect(self, topic: str, partitions: list[int], kind: int = 0) -> dict[int, int]:
        values = {"ElectionType": kind, "TopicPartitions": [{"Topic": topic, "Partitions": partitions}]}
        answer = self.ask_controller("ElectLeaders", 2, values | {"TimeoutMs": 10000})
        assert answer["ErrorCode"] == 0, answer
        (found,) = answer["ReplicaElectionResults"]
        return {each["PartitionId"]: each["ErrorCode"] for each in found["PartitionResult"]}

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

    def produce(self, topic: str, partition: int, value: bytes) -> int:
        """At the leader, acks=all; the record's offset. Tried again while there is none that takes it."""
        found: list[Values] = []

        def done() -> bool:
            found[:] = [self._produce_once(topic, partition, value)]
            assert found[0]["ErrorCode"] in (0, *RETRIABLE), found
            return bool(found[0]["ErrorCode"] == 0)

        wait_until(done, 40, f"a record in {topic}-{partition}")
        return int(found[0]["BaseOffset"])

    def _produce_once(self, topic: str, partition: int, value: bytes) -> Values:
        leader = self.partitions(self.running()[0], topic).get(partition, {"LeaderId": -1})["LeaderId"]
        if leader not in self.running():
            return {"ErrorCode": 5}
        with self.brokers[leader].client() as client:
            return client.produce(topic, batch([value]), partition=partition, version=8)

    def read(self, topic: str, partition: int, offset: int) -> Values:
        leader = self.partitions(self.running()[0], topic)[partition]["LeaderId"]
        part = {"Partition": partition, "CurrentLeaderEpoch": -1, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
        values = {"ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionEpoch": -1}
        answer = self.call(leader, "Fetch", 11, values | {"Topics": [{"Topic": topic, "Partitions": [part]}]})
        found: Values = answer["Responses"][0]["Partitions"][0]
        return found


def same_view(mixed: Mixed, topic: str, key: Callable[[Values], Any] | None = None) -> dict[int, Any]:
    """What every running broker tells of a topic, once they agree."""
    shown = key or (lambda each: (each["LeaderId"], each["LeaderEpoch"], each["ReplicaNodes"], each["IsrNodes"]))

    def agreed() -> dict[int, Any] | None:
        views = [
            {index: shown(each) for index, each in mixed.partitions(broker_id, topic).items()}
            for broker_id in mixed.running()
        ]
        return views[0] if views[0] and all(each == views[0] for each in views) else None

    found: dict[int, Any] = wait_until(agreed, 30, f"one view of {topic}")
    return found


def _json(data: bytes | None) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data
