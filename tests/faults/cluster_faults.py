"""The faults and moves that a round is made of. Each leaves the cluster to be healed by whoever called it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.faults.cluster_checks import COMPACTED, UNSURE, eventually, place, records_of
from tests.faults.cluster_rounds import SETTLING_S, Answer, Cluster, Node, PartitionState
from tests.faults.cluster_traffic import At, Sender, Traffic
from tests.support.broker import wait_until
from tests.support.records import batch
from tests.support.wire import Closed

UNKNOWN_TOPIC_OR_PARTITION, TOPIC_ALREADY_EXISTS, NOT_LEADER_OR_FOLLOWER = 3, 36, 6
INVALID_PARTITIONS, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, NO_REASSIGNMENT_IN_PROGRESS = 37, 84, 80, 85
GROWING = "growing"


class Scene(NamedTuple):
    """What a fault works on. `random` says whom it hits."""

    cluster: Cluster
    traffic: Traffic
    random: random.Random

    def some(self, but: int = -1) -> Node:
        """A serving broker, another than `but`."""
        return self.random.choice([node for node in self.cluster.serving() if node.broker_id != but])

    def moment(self, longest_s: float) -> None:
        """Until a moment of no one's choice."""
        time.sleep(self.random.random() * longest_s)


# Deaths


def _kill(scene: Scene, *nodes: Node) -> None:
    """At once; then they are missed (most of the time), and come back together."""
    for node in nodes:
        node.kill()
    if scene.random.random() < 0.8 and scene.cluster.serving():
        scene.cluster.wait_for_leaders()
    scene.moment(1)
    scene.cluster.start(nodes)


def kill_a_leader(scene: Scene) -> None:
    _kill(scene, scene.some(but=scene.cluster.controller()))


def kill_the_controller(scene: Scene) -> None:
    _kill(scene, scene.cluster.nodes[scene.cluster.controller()])


def kill_controller_and_leader(scene: Scene) -> None:
    controller = scene.cluster.controller()
    _kill(scene, scene.cluster.nodes[controller], scene.some(but=controller))


def kill_one_after_the_other(scene: Scene) -> None:
    """The second dies while the first catches up."""
    first, second = scene.random.sample(scene.cluster.serving(), 2)
    _kill(scene, first)
    scene.moment(1)
    _kill(scene, second)


def kill_all(scene: Scene) -> None:
    _kill(scene, *scene.cluster.serving())


def rolling_restart(scene: Scene) -> None:
    """SIGTERM, controlled shutdown, and a start when all are in sync."""
    for node in scene.random.sample(scene.cluster.serving(), len(scene.cluster.nodes)):
        scene.cluster.wait_until_settled()
        node.stop()
        scene.cluster.wait_for_leaders()
        node.start()


# Silence


def _pause(scene: Scene, node: Node) -> None:
    """For longer than its session and its followers' patience. It wakes as a leader that is none any more, with writes
    in its sockets that need no replicas: it may take them, and has to cut them off again."""
    led = [at for at, state in scene.cluster.partitions().items() if state[0] == node.broker_id]
    node.pause()
    with scene.cluster.client(node.broker_id, 60) as client:
        for topic, index in led:
            if topic in scene.traffic.topics:
                client.send_produce(topic, batch([b"%s:%d:0:" % (UNSURE, index)]), partition=index, acks=1)
        scene.cluster.wait_for_leaders()
        time.sleep(scene.cluster.session_s)
        node.resume()
        scene.moment(0.5)


def pause_a_broker(scene: Scene) -> None:
    _pause(scene, scene.some(but=scene.cluster.controller()))


def pause_the_controller(scene: Scene) -> None:
    _pause(scene, scene.cluster.nodes[scene.cluster.controller()])


def pause_for_a_moment(scene: Scene) -> None:
    """About as long as a session, so that both may happen."""
    node = scene.some()
    node.pause()
    time.sleep(scene.cluster.session_s * (0.6 + 0.8 * scene.random.random()))
    node.resume()


def restart_zookeeper(scene: Scene) -> None:
    scene.cluster.zookeeper.stop()
    scene.cluster.zookeeper.start()


def miss_zookeeper(scene: Scene) -> None:
    """Brokers serve on without it; one of them may die meanwhile."""
    scene.cluster.zookeeper.stop()
    killed = [scene.some()] if scene.random.random() < 0.5 else []
    for node in killed:
        node.kill()
    time.sleep(scene.cluster.session_s * 2)
    scene.cluster.zookeeper.start()
    scene.cluster.start(killed)


# Moves


def _reassign(cluster: Cluster, wanted: Mapping[At, list[int] | None]) -> None:
    topics: dict[str, list[Answer]] = {}
    for (topic, index), replicas in wanted.items():
        topics.setdefault(topic, []).append({"PartitionIndex": index, "Replicas": replicas})
    request = {
        "TimeoutMs": 30000,
        "Topics": [{"Name": name, "Partitions": partitions} for name, partitions in topics.items()],
    }
    answer = cluster.call("AlterPartitionReassignments", 0, request, lambda answer: int(answer["ErrorCode"]))
    allowed = {0, NO_REASSIGNMENT_IN_PROGRESS} if None in wanted.values() else {0}
    codes = {each["ErrorCode"] for topic in answer["Responses"] for each in topic["Partitions"]}
    assert codes <= allowed, answer


def reassign_everything(scene: Scene) -> None:
    """To two brokers each, to two others, cancelled in the middle and done again; then to as many as before."""
    cluster = scene.cluster
    everyone = sorted(cluster.nodes)
    ours = [at for at in cluster.partitions() if not at[0].startswith("__")]
    cluster.wait_until_settled()
    _reassign(cluster, {at: scene.random.sample(everyone, 2) for at in ours})
    cluster.wait_until_settled(2)
    others = {at: scene.random.sample(everyone, 2) for at in ours}
    _reassign(cluster, others)
    scene.moment(0.5)
    _reassign(cluster, dict.fromkeys(ours))
    cluster.wait_until_settled(2)
    _reassign(cluster, others)
    scene.moment(0.5)
    if scene.random.random() < 0.5:
        kill_the_controller(scene)
    cluster.wait_until_settled(2)
    wanted = {at: scene.random.sample(everyone, cluster.factor) for at in ours}
    _reassign(cluster, {at: list(replicas) for at, replicas in wanted.items()})
    cluster.wait_until_settled(cluster.factor)


def elect_preferred(scene: Scene) -> None:
    request = {"ElectionType": 0, "TopicPartitions": None, "TimeoutMs": 30000}
    answer = scene.cluster.call("ElectLeaders", 1, request, lambda answer: int(answer["ErrorCode"]))
    codes = {each["ErrorCode"] for topic in answer["ReplicaElectionResults"] for each in topic["PartitionResult"]}
    assert codes <= {0, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE}, answer


# Topics


def make_topics(cluster: Cluster, partitions: Mapping[str, int]) -> None:
    """The topics of the rounds, with so many partitions: COMPACTED is compacted, "safe" wants two replicas in sync."""
    for name, count in partitions.items():
        configs: dict[str, Any] = {"segment_bytes": "131072", "index_interval_bytes": "1024"}
        if name == COMPACTED:
            configs |= {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_bytes": "32768"}
        if name == "safe":
            configs["min_insync_replicas"] = "2"
        create_topic(cluster, name, count, **configs)


def create_topic(
    cluster: Cluster, name: str, partitions: int = 1, /, *, replicas: Sequence[int] = (), **configs: str
) -> None:
    """The controller chooses the replicas, or one partition on these; config names with '_' for '.'."""
    topic = {
        "Name": name,
        "NumPartitions": -1 if replicas else partitions,
        "ReplicationFactor": -1 if replicas else cluster.factor,
        "Assignments": [{"PartitionIndex": 0, "BrokerIds": list(replicas)}] if replicas else [],
        "Configs": [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()],
    }
    request = {"Topics": [topic], "timeoutMs": 30000}
    cluster.call("CreateTopics", 5, request, lambda answer: int(answer["Topics"][0]["ErrorCode"]), TOPIC_ALREADY_EXISTS)


def _delete_topics(cluster: Cluster, *names: str) -> None:
    for name in names:
        request = {"TopicNames": [name], "TimeoutMs": 3000}
        code = _first_response
        cluster.call("DeleteTopics", 4, request, code, UNKNOWN_TOPIC_OR_PARTITION)


def _first_response(answer: Answer) -> int:
    return int(answer["Responses"][0]["ErrorCode"])


def _wait_until_gone(cluster: Cluster, *names: str) -> None:
    """From what brokers say and from their disks."""

    def gone() -> bool:
        told = any(topic in names for node in cluster.serving() for topic, _ in cluster.partitions(node.broker_id))
        held = [
            path
            for node in cluster.nodes.values()
            for path in node.data_dir.iterdir()
            if path.is_dir() and path.name.rsplit("-", 1)[0] in names
        ]
        return not told and not held

    wait_until(gone, SETTLING_S, f"the end of {names}")


def produce(cluster: Cluster, at: At, values: list[bytes]) -> None:
    """With acks=all, once there is a leader."""

    def done() -> bool:
        leader = cluster.partitions().get(at, (-1,))[0]
        if leader not in cluster.nodes:
            return False
        try:
            with cluster.client(leader, 30) as client:
                answer = client.produce(at[0], batch(values), partition=at[1])
        except (Closed, ConnectionError):
            return False
        assert answer["ErrorCode"] in (0, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER), answer
        return not answer["ErrorCode"]

    wait_until(done, SETTLING_S, f"a write to {at}")


def topics_come_and_go(scene: Scene) -> None:
    """Some at once, written to, deleted; a name is used again at once."""
    names = [f"passing-{number}" for number in range(5)]
    for _ in range(2):
        for name in names:
            create_topic(scene.cluster, name, 3)
        for name in names:
            produce(scene.cluster, (name, scene.random.randrange(3)), [b"passing"])
        _delete_topics(scene.cluster, *names)
        _wait_until_gone(scene.cluster, *names)


def delete_with_a_dead_replica(scene: Scene) -> None:
    """The topic goes when the broker that was dead is back; the controller may die in between."""
    create_topic(scene.cluster, "doomed", 6)
    produce(scene.cluster, ("doomed", 0), [b"doomed"])
    dead = scene.some()
    dead.kill()
    scene.cluster.wait_for_leaders()
    _delete_topics(scene.cluster, "doomed")
    if scene.random.random() < 0.5:
        kill_the_controller(scene)
    dead.start()
    _wait_until_gone(scene.cluster, "doomed")


def add_partitions(scene: Scene) -> None:
    count = max(index for topic, index in scene.cluster.partitions() if topic == GROWING) + 2
    request = {"Topics": [{"Name": GROWING, "Count": count, "Assignments": None}], "TimeoutMs": 30000}
    scene.cluster.call(
        "CreatePartitions", 1, request, lambda answer: int(answer["Results"][0]["ErrorCode"]), INVALID_PARTITIONS
    )
    for node in scene.cluster.serving():
        wait_until(
            lambda node=node: (GROWING, count - 1) in scene.cluster.partitions(node.broker_id),
            SETTLING_S,
            "the new partition",
        )
    scene.traffic.partitions_added()
    for producer in scene.traffic.producers:
        if isinstance(producer, Sender) and GROWING in producer.counts:
            producer.counts[GROWING] = count


# Elections out of sync


def elect_unclean(scene: Scene) -> None:
    """Of two replicas one misses the last writes, and the other dies: where unclean elections are allowed the first
    leads and those writes are gone everywhere; where they are not the partition waits, and keeps them."""
    cluster = scene.cluster
    cluster.wait_until_settled()
    ahead, behind = scene.random.sample(sorted(cluster.nodes), 2)
    topics = {"clean": "false", "unclean": "true"}
    for name, allowed in topics.items():
        create_topic(cluster, name, replicas=[ahead, behind], unclean_leader_election_enable=allowed)
        produce(cluster, (name, 0), [b"both"])
    cluster.nodes[behind].kill()
    for name in topics:
        wait_until(lambda name=name: known(cluster, (name, 0))[3] == (ahead,), SETTLING_S, "a smaller ISR")
        produce(cluster, (name, 0), [b"one"])
    cluster.nodes[ahead].kill()
    cluster.nodes[behind].start()
    wait_until(lambda: known(cluster, ("unclean", 0))[0] == behind, SETTLING_S, "the unclean leader")
    assert known(cluster, ("clean", 0))[0] not in (ahead, behind)
    produce(cluster, ("unclean", 0), [b"other"])
    cluster.nodes[ahead].start()
    produce(cluster, ("clean", 0), [b"again"])
    cluster.wait_until_settled()
    for broker_id in (ahead, behind):
        eventually(_check_values, cluster, broker_id, "clean", [b"both", b"one", b"again"])
        eventually(_check_values, cluster, broker_id, "unclean", [b"both", b"other"])
    _delete_topics(cluster, *topics)
    _wait_until_gone(cluster, *topics)


def known(cluster: Cluster, at: At) -> PartitionState:
    """What a broker says of a partition, as soon as one does: one that has just started may not know it yet."""
    state: PartitionState = wait_until(lambda: cluster.partitions().get(at), SETTLING_S, f"somebody who knows {at}")
    return state


def _check_values(cluster: Cluster, broker_id: int, name: str, wanted: list[bytes]) -> None:
    found = [bytes(record.value or b"") for record in records_of(place(cluster.nodes[broker_id], (name, 0)))]
    assert found == wanted, f"{name} on {broker_id}: {found}"


FAULTS: dict[str, Callable[[Scene], None]] = {
    each.__name__: each
    for each in (
        kill_a_leader,
        kill_the_controller,
        kill_controller_and_leader,
        kill_one_after_the_other,
        kill_all,
        rolling_restart,
        pause_a_broker,
        pause_the_controller,
        pause_for_a_moment,
        restart_zookeeper,
        miss_zookeeper,
        reassign_everything,
        elect_preferred,
        topics_come_and_go,
        delete_with_a_dead_replica,
        add_partitions,
        elect_unclean,
    )
}


class Deck:
    """Deals every fault once before any comes again."""

    def __init__(self, dealer: random.Random, faults: Iterable[str] = FAULTS) -> None:
        self._dealer = dealer
        self._faults = list(faults)
        self._left: list[str] = []

    def deal(self, count: int) -> list[str]:
        dealt = []
        for _ in range(count):
            if not self._left:
                self._left = self._dealer.sample(self._faults, len(self._faults))
            dealt.append(self._left.pop())
        return dealt
