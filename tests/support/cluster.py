"""Clusters of both kinds of broker under one ZooKeeper: Apache Kafka 3.9.2 and ours.

with Cluster(tmp_path, zookeeper, {1: KAFKA, 2: KAFKA, 3: OURS}) as cluster:   # all started, in this order
    cluster.make_controller(3)
    cluster.create_topic("t", {0: [1, 2, 3]})
    cluster.kill(1); cluster.wait_gone(1); cluster.bring_back(1)
    cluster.wait_in_sync("t")

What is asked about partitions is read from ZooKeeper, so that no broker's opinion counts.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.support.broker import BrokerProcess, TwoDirectories, wait_until
from tests.support.kafka import KafkaBroker
from tests.support.wire import WireClient
from tests.support.zookeeper import ZooKeeperServer

KAFKA, OURS = "kafka", "pybroker"
NOT_CONTROLLER, REASSIGNMENT_IN_PROGRESS = 41, 60
SESSION_MS = 4000

#: Of every broker of either kind, unless a test says otherwise.
SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": "4000",
    "replica.fetch.wait.max.ms": "100",
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "controlled.shutdown.retry.backoff.ms": "500",
    "controller.socket.timeout.ms": "10000",
}

Broker = BrokerProcess | KafkaBroker


class PartitionState(NamedTuple):
    """What the state node of a partition says."""

    leader: int
    isr: tuple[int, ...]
    leader_epoch: int
    version: int  # of the node, which is the partition epoch


class Cluster:
    """See the module. On leaving the context all brokers end, and each of ours must have a clean log."""

    def __init__(
        self,
        work: Path,
        zookeeper: ZooKeeperServer,
        kinds: Mapping[int, str],
        settings: Mapping[str, str] | None = None,
        broker_settings: Mapping[int, Mapping[str, str]] | None = None,
        two_directories: bool = False,
        later: Sequence[int] = (),
    ) -> None:
        """`kinds` says for each broker id which it is, and in which order they start; `settings` are everyone's,
        `broker_settings` those of single brokers. Those named in `later` start when a test says so. With two log
        directories these are x and y in each data_dir."""
        self.zookeeper, self.kinds = zookeeper, dict(kinds)
        self.chroot = f"/cluster-{uuid.uuid4()}"
        self.brokers: dict[int, Broker] = {}
        for broker_id, kind in self.kinds.items():
            own = SETTINGS | dict(settings or {}) | dict((broker_settings or {}).get(broker_id, {}))
            connect, folder = zookeeper.address + self.chroot, work / f"{kind}-{broker_id}"
            data = folder / "data"
            if kind == KAFKA:
                own |= {"log.dirs": f"{data}/x,{data}/y"} if two_directories else {}
                self.brokers[broker_id] = KafkaBroker(folder, data, connect, broker_id, own)
            else:
                own |= {"zookeeper.connect": connect, "broker.id": str(broker_id)}
                self.brokers[broker_id] = (TwoDirectories if two_directories else BrokerProcess)(data, own)
        self._later = later
        session_ms = (SETTINGS | dict(settings or {}))["zookeeper.session.timeout.ms"]
        self._half_session_seconds = int(session_ms) / 2000
        self._store: Any = None
        self._paused: set[int] = set()

    # life
    def __enter__(self) -> Cluster:
        self._store = self.zookeeper.client()
        try:
            for broker_id in self.brokers:
                if broker_id not in self._later:
                    self.start(broker_id)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None:
            self.check_logs()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self._store.stop()
        self._store.close()

    def check_logs(self) -> None:
        for broker in self.brokers.values():
            if isinstance(broker, BrokerProcess):
                broker.check_log()

    def of(self, kind: str) -> list[int]:
        return [broker_id for broker_id, each in self.kinds.items() if each == kind]

    def running(self) -> list[int]:
        return [broker_id for broker_id, broker in self.brokers.items() if broker.process is not None]

    def start(self, *broker_ids: int) -> None:
        """Several Kafkas start at the same time; returns when all serve."""
        kafkas = [self.brokers[each] for each in broker_ids if self.kinds[each] == KAFKA]
        for kafka in kafkas:
            assert isinstance(kafka, KafkaBroker)
            kafka.launch()
        for broker_id in broker_ids:
            broker = self.brokers[broker_id]
            broker.wait_ready() if isinstance(broker, KafkaBroker) else broker.start()

    def stop(self, broker_id: int) -> None:
        """A controlled shutdown."""
        self.brokers[broker_id].stop()

    def kill(self, broker_id: int) -> None:
        self._paused.discard(broker_id)
        self.brokers[broker_id].kill()

    def bring_back(self, *broker_ids: int) -> None:
        """Starts brokers that were stopped or killed, when their old registrations are gone."""
        for broker_id in broker_ids:
            self.wait_gone(broker_id)
        self.start(*broker_ids)

    def pause(self, broker_id: int) -> None:
        self._paused.add(broker_id)
        os.kill(self.brokers[broker_id].pid, signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        self._paused.discard(broker_id)
        os.kill(self.brokers[broker_id].pid, signal.SIGCONT)

    # who is there
    def registered(self) -> list[int]:
        return sorted(int(name) for name in self._store.get_children(f"{self.chroot}/brokers/ids"))

    def wait_gone(self, broker_id: int) -> None:
        wait_until(lambda: broker_id not in self.registered(), 60, f"the end of broker {broker_id}'s session")

    def wait_registered(self, *broker_ids: int) -> None:
        wait_until(lambda: set(broker_ids) <= set(self.registered()), 60, f"the registration of {broker_ids}")

    def controller_id(self) -> int:
        """-1 where there is none just now."""
        found = self.node("/controller")
        return -1 if found is None else int(json.loads(found)["brokerid"])

    def wait_controller(self) -> int:
        wait_until(lambda: self.controller_id() >= 0, 60, "a controller")
        return self.controller_id()

    def make_controller(self, broker_id: int) -> None:
        """All others are stopped, for less than a session, while the election goes on."""
        if self.controller_id() == broker_id:
            return
        others = [each for each in self.running() if each != broker_id and each not in self._paused]
        for each in others:
            self.pause(each)
        try:
            if self.node("/controller") is not None:
                self._store.delete(f"{self.chroot}/controller")
            wait_until(lambda: self.controller_id() == broker_id, self._half_session_seconds, f"controller {broker_id}")
        finally:
            for each in others:
                self.resume(each)

    def node(self, path: str) -> bytes | None:
        """The data of a node below the chroot, None where there is no such node."""
        from kazoo.exceptions import NoNodeError

        try:
            data, _ = self._store.get(self.chroot + path)
        except NoNodeError:
            return None
        return bytes(data or b"")

    # topics
    def states(self, topic: str) -> dict[int, PartitionState]:
        """By partition; those without a state yet are left out."""
        from kazoo.exceptions import NoNodeError

        found = {}
        for index in self.assignment(topic):
            try:
                data, stat = self._store.get(f"{self.chroot}/brokers/topics/{topic}/partitions/{index}/state")
            except NoNodeError:
                continue
            state = json.loads(data)
            found[index] = PartitionState(state["leader"], tuple(state["isr"]), state["leader_epoch"], stat.version)
        return found

    def assignment(self, topic: str) -> dict[int, list[int]]:
        """Replicas by partition, empty for a topic that does not exist."""
        data = self.node(f"/brokers/topics/{topic}")
        return {} if data is None else {int(index): each for index, each in json.loads(data)["partitions"].items()}

    def in_sync(self, topic: str) -> bool:
        """Every partition is led by a live broker, and all of its replicas are in sync."""
        states = self.states(topic)
        return all(
            index in states and states[index].leader >= 0 and sorted(states[index].isr) == sorted(replicas)
            for index, replicas in self.assignment(topic).items()
        )

    def wait_in_sync(self, *topics: str, seconds: float = 60) -> None:
        for topic in topics:
            wait_until(lambda topic=topic: self.in_sync(topic), seconds, f"all replicas of {topic} in sync")

    def wait_leader(self, topic: str, index: int, *broker_ids: int, seconds: float = 60) -> None:
        wait_until(lambda: self.states(topic)[index].leader in broker_ids, seconds, f"{broker_ids} leading {topic}")

    def client(self, broker_id: int) -> WireClient:
        return WireClient("127.0.0.1", int(self.brokers[broker_id].address.rsplit(":", 1)[1]), timeout=30)

    @property
    def bootstrap(self) -> str:
        """All but those that are paused: they accept connections and answer nothing."""
        return ",".join(broker.address for each, broker in self.brokers.items() if each not in self._paused)

    def ask_controller(self, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        with self.client(self.wait_controller()) as client:
            return client.call(api, version, values)

    def create_topic(self, name: str, assignment: Mapping[int, Sequence[int]], **configs: str) -> None:
        """With these replicas for each partition, the first of them preferred; config names with '_' for '.'.
        Returns when all replicas are in sync."""
        topic = {
            "Name": name,
            "NumPartitions": -1,
            "ReplicationFactor": -1,
            "Assignments": [{"PartitionIndex": index, "BrokerIds": list(each)} for index, each in assignment.items()],
            "Configs": [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()],
        }
        answer = self.ask_controller("CreateTopics", 5, {"Topics": [topic], "timeoutMs": 30000})["Topics"][0]
        assert answer["ErrorCode"] == 0, answer
        self.wait_in_sync(name)

    def delete_topic(self, name: str) -> None:
        """Returns when it is gone from ZooKeeper."""
        asked = {"TopicNames": [name], "TimeoutMs": 30000}
        (answer,) = self.ask_controller("DeleteTopics", 4, asked)["Responses"]
        assert answer["ErrorCode"] == 0, answer
        wait_until(lambda: not self.assignment(name), 60, f"the deletion of {name}")

    def reassign(self, moves: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """Begins moves of partitions; wait_reassigned() waits for their end."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), replicas in moves.items():
            topics.setdefault(topic, []).append({"PartitionIndex": index, "Replicas": list(replicas)})
        asked = {"TimeoutMs": 30000, "Topics": [{"Name": name, "Partitions": each} for name, each in topics.items()]}
        answer = self.ask_controller("AlterPartitionReassignments", 0, asked)
        errors = {each["ErrorCode"] for topic in answer["Responses"] for each in topic["Partitions"]}
        assert answer["ErrorCode"] == 0 and errors <= {0}, answer

    def wait_reassigned(self, moves: Mapping[tuple[str, int], Sequence[int]], seconds: float = 60) -> None:
        def done() -> bool:
            return all(
                self.assignment(topic).get(index) == list(replicas) for (topic, index), replicas in moves.items()
            ) and not any(self._moving(topic) for topic in {topic for topic, _ in moves})

        wait_until(done, seconds, f"the moves {moves}")

    def _moving(self, topic: str) -> bool:
        data = json.loads(self.node(f"/brokers/topics/{topic}") or b"{}")
        return bool(data.get("adding_replicas") or data.get("removing_replicas"))

    def elect(self, partitions: Iterable[tuple[str, int]], *, unclean: bool = False) -> None:
        """Preferred (or unclean) elections; those that are not needed are no failure."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        rows = [{"Topic": name, "Partitions": indexes} for name, indexes in topics.items()]
        asked = {"ElectionType": int(unclean), "TopicPartitions": rows, "TimeoutMs": 30000}
        answer = self.ask_controller("ElectLeaders", 1, asked)
        assert answer["ErrorCode"] == 0, answer

    # logs
    def folder(self, broker_id: int, topic: str, index: int) -> Path:
        """Of a replica that is there."""
        data = self.brokers[broker_id].data_dir
        (found,) = [*data.glob(f"{topic}-{index}"), *data.glob(f"*/{topic}-{index}")]
        return found

    def log_bytes(self, broker_id: int, topic: str, index: int) -> bytes:
        """The .log files of a replica, one after the other."""
        folder = self.folder(broker_id, topic, index)
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def wait_equal_logs(self, topic: str, seconds: float = 30) -> None:
        """All replicas have the same bytes; the topic deletes nothing meanwhile, or they start at different places."""
        for index, replicas in self.assignment(topic).items():
            wait_until(
                lambda index=index, replicas=replicas: len(
                    {self.log_bytes(each, topic, index) for each in replicas}
                ) == 1,
                seconds,
                f"equal bytes of {topic}-{index} on {replicas}",
            )  # fmt: skip
