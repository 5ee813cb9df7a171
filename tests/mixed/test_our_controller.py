"""Our controller over two Apache Kafka brokers: every duty done to brokers that are not ours.

One cluster serves all tests of a protocol version, in their order; each leaves all three brokers running and in sync.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.mixed.duties import Mixed, same_view
from tests.support.broker import wait_until
from tests.support.java import need_java
from tests.support.kafka import KafkaBroker
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(300)

OURS, KAFKA, OTHER = 1, 2, 3
TOPIC, CLUSTER_DEFAULT = 2, ""
BROKER = 4


@pytest.fixture(scope="module", params=["3.9", "2.8", "2.6"])
def mixed(
    request: pytest.FixtureRequest,
    zookeeper: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
    long_run: bool,
) -> Iterator[Mixed]:
    need_java("3.9.2")
    if request.param == "2.8" and not long_run:
        pytest.skip("with --long")
    work = tmp_path_factory.mktemp(f"controller-{request.param}")
    settings = {"inter.broker.protocol.version": request.param}
    with Mixed(zookeeper, work, [OURS], [KAFKA, OTHER], settings) as cluster:
        assert cluster.controller() == OURS
        yield cluster


def kafka(mixed: Mixed, broker_id: int) -> KafkaBroker:
    broker = mixed.brokers[broker_id]
    assert isinstance(broker, KafkaBroker)
    return broker


def test_all_know_all(mixed: Mixed) -> None:
    for broker_id in mixed.brokers:
        known = wait_until(lambda broker_id=broker_id: full(mixed, broker_id), 30, "all brokers")
        assert known["ControllerId"] == OURS


def full(mixed: Mixed, broker_id: int) -> dict[str, object] | None:
    known = mixed.metadata(broker_id)
    return known if len(known["Brokers"]) == 3 else None


def test_topics_are_made_enlarged_and_deleted(mixed: Mixed) -> None:
    mixed.create("made", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], retention_ms="7777777")
    for partition in range(3):
        assert mixed.produce("made", partition, b"x") == 0
        assert mixed.read("made", partition, 0)["Records"]
    for broker_id in mixed.brokers:
        assert mixed.config(broker_id, TOPIC, "made", "retention.ms") == "7777777"
    more = [{"BrokerIds": [3, 2, 1]}, {"BrokerIds": [2, 1, 3]}]
    asked = {"Name": "made", "Count": 5, "Assignments": more}
    (answer,) = mixed.ask_controller("CreatePartitions", 1, {"Topics": [asked], "TimeoutMs": 10000})["Results"]
    assert answer["ErrorCode"] == 0
    mixed.wait_led("made", 5)
    view = same_view(mixed, "made")
    assert {index: each[0] for index, each in view.items()} == {0: 1, 1: 2, 2: 3, 3: 3, 4: 2}
    for partition in (3, 4):
        assert mixed.produce("made", partition, b"x") == 0
    mixed.delete("made")
    mixed.wait_deleted("made")
    mixed.create("made", [[2, 3]])
    assert mixed.produce("made", 0, b"another topic") == 0
    mixed.delete("made")
    mixed.wait_deleted("made")


def test_a_topic_that_a_kafka_makes_by_itself(mixed: Mixed) -> None:
    """It writes the nodes; the controller goes on from there."""
    asked = {"Topics": [{"Name": "automatic"}], "AllowAutoTopicCreation": True}
    mixed.call(KAFKA, "Metadata", 9, asked)
    mixed.wait_led("automatic", 1)
    assert mixed.produce("automatic", 0, b"x") == 0


def test_producer_ids(mixed: Mixed) -> None:
    asked = {"TransactionalId": None, "TransactionTimeoutMs": 60000, "ProducerId": -1, "ProducerEpoch": -1}
    given: list[int] = []

    def take(broker_id: int) -> bool:
        answer = mixed.call(broker_id, "InitProducerId", 3, asked)
        assert answer["ErrorCode"] in (0, 14)  # Kafka asks for its first block meanwhile
        if not answer["ErrorCode"]:
            given.append(answer["ProducerId"])
        return not answer["ErrorCode"]

    for _ in range(3):
        for broker_id in mixed.brokers:
            wait_until(lambda broker_id=broker_id: take(broker_id), 30, "a producer id")
    assert len(set(given)) == 9
    assert len({each // 1000 for each in given}) == 3, "a block for each"


def test_settings_reach_both_kinds(mixed: Mixed) -> None:
    mixed.create("set", [[1, 2, 3]])
    for turn, asked in enumerate(mixed.brokers):
        value = str(5_000_000 + turn)
        mixed.configure(asked, TOPIC, "set", retention_ms=value)
        for broker_id in mixed.brokers:
            shown = lambda broker_id=broker_id: mixed.config(broker_id, TOPIC, "set", "retention.ms")
            wait_until(lambda shown=shown, value=value: shown() == value, 20, f"the setting at {broker_id}")
        mixed.configure(asked, BROKER, CLUSTER_DEFAULT, log_cleaner_backoff_ms=str(20_000 + turn))
        for broker_id in mixed.brokers:
            name = str(broker_id)
            shown = lambda name=name: mixed.config(int(name), BROKER, name, "log.cleaner.backoff.ms")
            wait_until(lambda shown=shown, turn=turn: shown() == str(20_000 + turn), 20, f"the default at {name}")
    mixed.delete("set")
    mixed.wait_deleted("set")


def test_a_kafka_dies_and_comes_back(mixed: Mixed) -> None:
    """With a deletion that has to wait for it."""
    mixed.create("kept", [[1, 2, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]], min_insync_replicas="2")
    mixed.create("going", [[1, 3], [3, 2]])
    for partition in range(4):
        mixed.produce("kept", partition, b"before")
    before = mixed.states("kept")
    kafka(mixed, OTHER).kill()
    mixed.wait_gone(OTHER)
    for partition in range(4):
        assert mixed.produce("kept", partition, b"without") == 1
    view = same_view(mixed, "kept")
    assert {index: each[0] for index, each in view.items()} == {0: 1, 1: 2, 2: 1, 3: 2}
    after = mixed.states("kept")
    for at, state in after.items():
        assert OTHER not in state["isr"]
        assert state["leader_epoch"] == before[at]["leader_epoch"] + 1
    mixed.delete("going")
    for broker_id in mixed.running():
        wait_until(lambda broker_id=broker_id: not mixed.partitions(broker_id, "going"), 20, "the topic to be hidden")
    assert "/admin/delete_topics/going" in mixed.nodes()
    mixed.start(OTHER)
    mixed.wait_deleted("going")
    mixed.wait_in_sync("kept")
    for at, state in mixed.states("kept").items():
        assert state["leader_epoch"] == after[at]["leader_epoch"], "an expansion is no election"

    assert mixed.elect("kept", [0, 1, 2, 3]) == {0: 84, 1: 84, 2: 0, 3: 0}
    view = same_view(mixed, "kept")
    assert {index: each[0] for index, each in view.items()} == {0: 1, 1: 2, 2: 3, 3: 3}
    for partition in range(4):
        assert mixed.produce("kept", partition, b"back") == 2


def test_partitions_move_between_kinds(mixed: Mixed) -> None:
    mixed.create("moved", [[1, 2], [2, 1], [3, 2]])
    for partition in range(3):
        for value in range(20):
            mixed.produce("moved", partition, b"%d" % value)
    assert mixed.reassign("moved", {0: [3, 2], 1: [3, 1], 2: [1, 3]}) == [0, 0, 0]
    wanted = {0: [3, 2], 1: [3, 1], 2: [1, 3]}

    def there() -> bool:
        node = mixed.nodes()["/brokers/topics/moved"]
        replicas = {int(index): ids for index, ids in node["partitions"].items()}
        return replicas == wanted and not node["adding_replicas"] and not node["removing_replicas"]

    wait_until(there, 40, "the end of the moves")
    mixed.wait_in_sync("moved")
    view = same_view(mixed, "moved")
    assert {index: sorted(each[2]) for index, each in view.items()} == {0: [2, 3], 1: [1, 3], 2: [1, 3]}
    for partition, gone in ((0, 1), (1, 2), (2, 2)):
        lies = lambda gone=gone, partition=partition: mixed.folders(gone, f"moved-{partition}")
        wait_until(lambda lies=lies: not lies(), 20, f"the replica at {gone} to go")
        assert mixed.produce("moved", partition, b"after") == 20
    assert mixed.reassign("moved", {0: None}) == [85]
    mixed.delete("moved")
    mixed.wait_deleted("moved")


@pytest.mark.parametrize(("replicas", "target"), [([1, 2], 3), ([2, 1], 3), ([2, 3], 1)])
def test_a_move_is_cancelled(mixed: Mixed, replicas: list[int], target: int) -> None:
    """While its target stands still."""
    topic = f"cancelled-{replicas[0]}-{target}"
    mixed.create(topic, [replicas])
    for value in range(20):
        mixed.produce(topic, 0, b"%d" % value)
    process = mixed.brokers[target].process
    assert process is not None
    if target != OURS:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        assert mixed.reassign(topic, {0: [target, replicas[0]]}) == [0]
        node = mixed.nodes()[f"/brokers/topics/{topic}"]
        if target != OURS:
            assert (node["adding_replicas"], node["removing_replicas"]) == ({"0": [target]}, {"0": [replicas[1]]})
            assert mixed.reassign(topic, {0: None}) == [0]
    finally:
        os.kill(process.pid, signal.SIGCONT)
    if target != OURS:
        wait_until(lambda: mixed.nodes()[f"/brokers/topics/{topic}"]["adding_replicas"] == {}, 20, "the cancellation")
        assert mixed.nodes()[f"/brokers/topics/{topic}"]["partitions"] == {"0": replicas}
    mixed.wait_in_sync(topic)
    same_view(mixed, topic)
    assert mixed.produce(topic, 0, b"after") == 20
    mixed.delete(topic)
    mixed.wait_deleted(topic)


def test_a_follower_lags_and_catches_up(mixed: Mixed) -> None:
    """Its leader asks for the smaller ISR, or with the protocol of 2.6 writes it and tells by a notification."""
    mixed.create("lag", [[2, 3, 1]])
    mixed.produce("lag", 0, b"x")
    process = mixed.brokers[OTHER].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with mixed.brokers[KAFKA].client() as client:
            from tests.support.records import batch

            client.produce("lag", batch([b"y"]), acks=1, version=8)
        wait_until(lambda: sorted(mixed.partitions(OURS, "lag")[0]["IsrNodes"]) == [1, 2], 30, "the smaller ISR")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: sorted(mixed.partitions(OURS, "lag")[0]["IsrNodes"]) == [1, 2, 3], 30, "the full ISR")
    wait_until(lambda: len(mixed.metadata(OURS)["Brokers"]) == 3, 30, "all brokers")
    same_view(mixed, "lag", lambda each: sorted(each["IsrNodes"]))
    assert not [path for path in mixed.nodes() if path.startswith("/isr_change_notification/")]


def test_a_kafka_is_shut_down(mixed: Mixed) -> None:
    mixed.create("handed", [[3, 2, 1], [3, 1, 2], [1, 3, 2], [2, 3, 1]])
    for partition in range(4):
        mixed.produce("handed", partition, b"x")
    before = mixed.states("handed")
    kafka(mixed, OTHER).stop()
    log = kafka(mixed, OTHER).log_text()
    assert "Controlled shutdown request returned successfully" in log
    view = same_view(mixed, "handed")
    assert {index: each[0] for index, each in view.items()} == {0: 2, 1: 1, 2: 1, 3: 2}
    for at, state in mixed.states("handed").items():
        assert state["leader_epoch"] == before[at]["leader_epoch"] + 1, "once for the leaving of a broker"
    mixed.start(OTHER)
    mixed.wait_in_sync("handed")
    assert set(mixed.elect("handed", [0, 1]).values()) == {0}


def test_an_unclean_election(mixed: Mixed) -> None:
    mixed.create("unclean", [[3, 2]])
    mixed.produce("unclean", 0, b"both")
    kafka(mixed, KAFKA).kill()
    mixed.wait_gone(KAFKA)
    wait_until(lambda: mixed.states("unclean")["unclean-0"]["isr"] == [3], 20, "the smaller ISR")
    mixed.produce("unclean", 0, b"lost")
    kafka(mixed, OTHER).kill()
    mixed.wait_gone(OTHER)
    wait_until(lambda: mixed.states("unclean")["unclean-0"]["leader"] == -1, 20, "no leader")
    mixed.start(KAFKA)
    assert mixed.states("unclean")["unclean-0"]["leader"] == -1
    mixed.configure(OURS, TOPIC, "unclean", unclean_leader_election_enable="true")
    wait_until(lambda: mixed.states("unclean")["unclean-0"]["leader"] == 2, 20, "an unclean leader")
    state = mixed.states("unclean")["unclean-0"]
    assert state["isr"] == [2]
    assert mixed.produce("unclean", 0, b"instead") == 1
    mixed.start(OTHER)
    mixed.wait_in_sync("unclean")
    assert "leader_recovery_state" not in mixed.states("unclean")["unclean-0"]
    for topic in ("kept", "lag", "handed"):
        mixed.wait_in_sync(topic)


def test_a_log_directory_of_a_kafka_fails(mixed: Mixed) -> None:
    """Its partitions are led and replicated by others; the broker serves on with its other one."""
    mixed.create("disk", [[3, 1, 2]] * 4)
    for partition in range(4):
        mixed.produce("disk", partition, b"x")
    lost = {int(folder.name.split("-")[1]) for folder in mixed.folders(OTHER, "disk-*") if folder.parent.name == "x"}
    assert 0 < len(lost) < 4
    x = mixed.work / f"b{OTHER}" / "x"
    x.rename(x.with_name("gone"))
    x.write_text("a file where the log directory was")
    try:
        def moved() -> bool:
            found = mixed.partitions(OURS, "disk")
            return {index for index, each in found.items() if each["OfflineReplicas"] == [OTHER]} == lost

        wait_until(moved, 30, "the failed replicas")
        view = same_view(mixed, "disk")
        assert {index: each[0] for index, each in view.items()} == {
            index: 1 if index in lost else OTHER for index in range(4)
        }
        for partition in range(4):
            assert mixed.produce("disk", partition, b"y") == 1
        assert not [path for path in mixed.nodes() if path.startswith("/log_dir_event_notification/")]
    finally:
        kafka(mixed, OTHER).stop()
        x.unlink()
        x.with_name("gone").rename(x)
        mixed.start(OTHER)
    mixed.wait_in_sync("disk")
    assert set(mixed.elect("disk", list(range(4))).values()) <= {0, 84}
    assert {each[0] for each in same_view(mixed, "disk").values()} == {OTHER}


def test_the_controller_moves_and_nothing_else_does(mixed: Mixed) -> None:
    """From ours to a Kafka, to the other, and back."""
    mixed.create("still", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    for partition in range(3):
        mixed.produce("still", partition, b"x")
    before, view = mixed.states(), same_view(mixed, "still")
    for turn, broker_id in enumerate((KAFKA, OURS, OTHER, OURS)):
        mixed.move_controller(broker_id)
        assert mixed.states() == before
        assert same_view(mixed, "still") == view
        for partition in range(3):
            assert mixed.produce("still", partition, b"y") == turn + 1
        topic = f"by-{broker_id}-{turn}"
        mixed.create(topic, [[1, 2], [2, 3], [3, 1]])
        mixed.delete(topic)
        mixed.wait_deleted(topic)


def test_the_controller_dies_on_either_side(mixed: Mixed) -> None:
    mixed.create("dying", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="2")
    for partition in range(3):
        mixed.produce("dying", partition, b"x")
    for turn, broker_id in enumerate((OURS, KAFKA, OURS)):
        mixed.move_controller(broker_id)
        before = mixed.states("dying")
        mixed.brokers[broker_id].kill()
        mixed.wait_gone(broker_id)
        wait_until(lambda broker_id=broker_id: mixed.controller() not in (-1, broker_id), 20, "the next controller")
        view = same_view(mixed, "dying")
        for index, state in before.items():
            leader = next(each for each in view[int(index[-1])][2] if each != broker_id)
            assert view[int(index[-1])][0] == (leader if state["leader"] == broker_id else state["leader"])
            now = mixed.states("dying")[index]
            assert broker_id not in now["isr"]
            assert now["leader_epoch"] > state["leader_epoch"]
        for partition in range(3):
            assert mixed.produce("dying", partition, b"y") == 2 * turn + 1
        mixed.start(broker_id)
        mixed.wait_in_sync("dying")
        for partition in range(3):
            assert mixed.produce("dying", partition, b"z") == 2 * turn + 2
        mixed.elect("dying", [0, 1, 2])
        same_view(mixed, "dying")


@pytest.mark.parametrize(("before", "after"), [(OURS, KAFKA), (KAFKA, OURS)])
def test_the_next_controller_ends_what_was_begun(mixed: Mixed, before: int, after: int) -> None:
    """A deletion and a move that wait for a dead broker, an election that was asked for in between."""
    mixed.move_controller(before)
    going, moving, asked = f"going-{before}", f"moving-{before}", f"asked-{before}"
    mixed.create(going, [[1, 3], [2, 3]])
    mixed.create(moving, [[1, 2], [2, 1]])
    mixed.create(asked, [[1, 2]])
    for value in range(20):
        mixed.produce(moving, 0, b"%d" % value)
    process = mixed.brokers[OTHER].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert mixed.reassign(moving, {0: [3, 2], 1: [1, 3]}) == [0, 0]
    mixed.delete(going)
    mixed.brokers[OTHER].kill()
    mixed.wait_gone(OTHER)
    wait_until(lambda: f"/admin/delete_topics/{going}" in mixed.nodes(), 20, "the deletion")
    adding = mixed.nodes()[f"/brokers/topics/{moving}"]["adding_replicas"]
    assert adding == {"0": [3], "1": [3]}

    mixed.move_controller(after)
    assert mixed.nodes()[f"/brokers/topics/{moving}"]["adding_replicas"] == adding
    listed = mixed.ask_controller("ListPartitionReassignments", 0, {"TimeoutMs": 5000, "Topics": None})
    (found,) = listed["Topics"]
    assert {each["PartitionIndex"]: each["AddingReplicas"] for each in found["Partitions"]} == {0: [3], 1: [3]}
    for broker_id in mixed.running():
        assert not mixed.partitions(broker_id, going)
    assert mixed.produce(moving, 0, b"meanwhile") == 20
    mixed.start(OTHER)
    mixed.wait_deleted(going)
    wait_until(lambda: not mixed.nodes()[f"/brokers/topics/{moving}"]["adding_replicas"], 40, "the move")
    mixed.wait_in_sync(moving)
    assert {index: sorted(each[2]) for index, each in same_view(mixed, moving).items()} == {0: [2, 3], 1: [1, 3]}
    assert mixed.produce(moving, 0, b"after") == 21
    mixed.put("/admin/preferred_replica_election", f'{{"version":1,"partitions":[{{"topic":"{asked}","partition":0}}]}}')
    wait_until(lambda: "/admin/preferred_replica_election" not in mixed.nodes(), 20, "the election")
