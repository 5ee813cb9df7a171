"""Our controller over two Apache Kafka brokers: every duty done to brokers that are not ours, and its moves to theirs.

One cluster serves all tests of a protocol version, in their order; each leaves all three brokers running and in sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import itemgetter

import pytest

from tests.mixed.duties import Mixed
from tests.support.broker import wait_until
from tests.support.java import need_java
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(300)

OURS, KAFKA, OTHER = 1, 2, 3
TOPIC, BROKER, EVERY_BROKER = 2, 4, ""  # resources of settings


@pytest.fixture(scope="module", params=["3.9", "2.8", "2.6"])
def mixed(
    request: pytest.FixtureRequest,
    zookeeper: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
    long_run: bool,
) -> Iterator[Mixed]:
    need_java("3.9.2")
    if request.param != "3.9" and not long_run:
        pytest.skip("with --long")
    work = tmp_path_factory.mktemp(f"controller-{request.param}")
    with Mixed(work, zookeeper, [OURS], [KAFKA, OTHER], {"inter.broker.protocol.version": request.param}) as cluster:
        assert cluster.controller_id() == OURS
        yield cluster


def test_all_know_all(mixed: Mixed) -> None:
    for broker_id in mixed.brokers:
        known = partial(mixed.metadata, broker_id)
        wait_until(lambda known=known: len(known()["Brokers"]) == 3, 30, "all brokers")
        assert known()["ControllerId"] == OURS


def test_topics_are_made_enlarged_and_deleted(mixed: Mixed) -> None:
    mixed.create("made", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], retention_ms="7777777")
    for partition in range(3):
        assert mixed.produce("made", partition, b"x") == 0
        assert mixed.read("made", partition, 0)
    for broker_id in mixed.brokers:
        assert mixed.config(broker_id, TOPIC, "made", "retention.ms") == "7777777"
    more = [{"BrokerIds": [3, 2, 1]}, {"BrokerIds": [2, 1, 3]}]
    asked = {"Name": "made", "Count": 5, "Assignments": more}
    (answer,) = mixed.ask_controller("CreatePartitions", 1, {"Topics": [asked], "TimeoutMs": 10000})["Results"]
    assert answer["ErrorCode"] == 0
    mixed.wait_led("made", 5)
    mixed.wait_leaders("made", {0: 1, 1: 2, 2: 3, 3: 3, 4: 2})
    for partition in (3, 4):
        assert mixed.produce("made", partition, b"x") == 0
    mixed.delete("made")
    mixed.create("made", [[2, 3]])
    assert mixed.produce("made", 0, b"another topic") == 0
    mixed.delete("made")


def test_a_topic_that_a_kafka_makes_by_itself(mixed: Mixed) -> None:
    """It writes the nodes; the controller goes on from there."""
    mixed.call(KAFKA, "Metadata", 9, {"Topics": [{"Name": "automatic"}], "AllowAutoTopicCreation": True})
    mixed.wait_led("automatic", 1)
    mixed.wait_in_sync("automatic")
    assert mixed.produce("automatic", 0, b"x") == 0


def test_topic_ids_are_known_to_all_or_none(mixed: Mixed) -> None:
    """With protocols older than ids no broker tells any, as clients would fetch by them from who does not know them."""
    mixed.create("ids", [[1, 2, 3]])
    found = {broker_id: mixed.metadata(broker_id, "ids")["Topics"][0]["TopicId"] for broker_id in mixed.brokers}
    assert len(set(found.values())) == 1
    assert (found[OURS] == bytes(16)) == ("topic_id" not in mixed.topic_node("ids"))
    mixed.delete("ids")


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
        topic_value, every_value = str(5_000_000 + turn), str(20_000 + turn)
        mixed.configure(asked, TOPIC, "set", retention_ms=topic_value)
        mixed.configure(asked, BROKER, EVERY_BROKER, log_cleaner_backoff_ms=every_value)
        for broker_id in mixed.brokers:
            for kind, name, setting, value in (
                (TOPIC, "set", "retention.ms", topic_value),
                (BROKER, str(broker_id), "log.cleaner.backoff.ms", every_value),
            ):
                where = (broker_id, kind, name, setting)
                wait_until(lambda where=where, value=value: mixed.config(*where) == value, 20, f"{value} at {where}")
    mixed.delete("set")


def test_a_kafka_dies_and_comes_back(mixed: Mixed) -> None:
    """With a deletion that has to wait for it."""
    mixed.create("kept", [[1, 2, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]], min_insync_replicas="2")
    mixed.create("going", [[1, 3], [3, 2]])
    for partition in range(4):
        mixed.produce("kept", partition, b"before")
    before = mixed.states("kept")
    mixed.kill(OTHER)
    mixed.wait_gone(OTHER)
    for partition in range(4):
        assert mixed.produce("kept", partition, b"without") == 1
    mixed.wait_leaders("kept", {0: 1, 1: 2, 2: 1, 3: 2})
    after = mixed.states("kept")
    for index, state in after.items():
        assert OTHER not in state.isr
        assert state.leader_epoch == before[index].leader_epoch + 1
    mixed.begin_deletion("going")
    for broker_id in mixed.running():
        known = partial(mixed.partitions, broker_id, "going")
        wait_until(lambda known=known: not known(), 20, "the topic to be hidden")
    assert mixed.node("/admin/delete_topics/going") is not None
    mixed.bring_back(OTHER)
    mixed.wait_deleted("going")
    mixed.wait_in_sync("kept")
    for index, state in mixed.states("kept").items():
        assert state.leader_epoch == after[index].leader_epoch, "an expansion is no election"
    mixed.restore_leaders("kept")
    assert set(mixed.prefer("kept", 0, 1, 2, 3).values()) == {84}, "there is no need"
    for partition in range(4):
        assert mixed.produce("kept", partition, b"back") == 2


def test_partitions_move_between_kinds(mixed: Mixed) -> None:
    mixed.create("moved", [[1, 2], [2, 1], [3, 2]])
    for partition in range(3):
        for value in range(20):
            mixed.produce("moved", partition, b"%d" % value)
    moves = {("moved", 0): [3, 2], ("moved", 1): [3, 1], ("moved", 2): [1, 3]}
    mixed.reassign(moves)
    mixed.wait_reassigned(moves)
    mixed.wait_in_sync("moved")
    mixed.wait_replicas("moved", {0: [2, 3], 1: [1, 3], 2: [1, 3]})
    for partition, gone in ((0, 1), (1, 2), (2, 2)):
        lies = partial(mixed.folders, gone, f"moved-{partition}")
        wait_until(lambda lies=lies: not lies(), 20, f"the replica at {gone} to go")
        assert mixed.produce("moved", partition, b"after") == 20
    assert mixed.cancel("moved", 0) == 85
    mixed.delete("moved")


@pytest.mark.parametrize("replicas", [[1, 2], [2, 1]])
def test_a_move_is_cancelled(mixed: Mixed, replicas: list[int]) -> None:
    """While its target stands still."""
    topic = f"cancelled-{replicas[0]}"
    mixed.create(topic, [replicas])
    for value in range(20):
        mixed.produce(topic, 0, b"%d" % value)
    mixed.pause(OTHER)
    try:
        mixed.reassign({(topic, 0): [OTHER, replicas[0]]})
        node = mixed.topic_node(topic)
        assert (node["adding_replicas"], node["removing_replicas"]) == ({"0": [OTHER]}, {"0": [replicas[1]]})
        assert mixed.cancel(topic, 0) == 0
        mixed.wait_reassigned({(topic, 0): replicas})
    finally:
        mixed.resume(OTHER)
    wait_until(lambda: not mixed.folders(OTHER, f"{topic}-0"), 20, "the new replica to go again")
    mixed.wait_in_sync(topic)
    mixed.wait_all_told(topic)
    assert mixed.produce(topic, 0, b"after") == 20
    mixed.delete(topic)


def test_a_follower_lags_and_catches_up(mixed: Mixed) -> None:
    """Its leader asks for the smaller ISR, or with the protocol of 2.6 writes it and tells by a notification."""
    mixed.create("lag", [[2, 3, 1]])
    mixed.produce("lag", 0, b"x")
    mixed.pause(OTHER)
    try:
        mixed.produce("lag", 0, b"y", acks=1)
        wait_until(lambda: sorted(mixed.states("lag")[0].isr) == [1, 2], 30, "the smaller ISR")
    finally:
        mixed.resume(OTHER)
    mixed.wait_in_sync("lag")
    wait_until(lambda: len(mixed.registered()) == 3, 30, "all brokers")
    mixed.wait_view("lag", {0: [1, 2, 3]}, lambda each: sorted(each["IsrNodes"]))
    wait_until(lambda: not any(path.startswith("/isr_change_notification/") for path in mixed.nodes()), 20, "an end")


def test_a_kafka_is_shut_down(mixed: Mixed) -> None:
    mixed.create("handed", [[3, 2, 1], [3, 1, 2], [1, 3, 2], [2, 3, 1]])
    for partition in range(4):
        mixed.produce("handed", partition, b"x")
    before = mixed.states("handed")
    mixed.stop(OTHER)
    assert "Controlled shutdown request returned successfully" in mixed.kafka(OTHER).log_text()
    mixed.wait_leaders("handed", {0: 2, 1: 1, 2: 1, 3: 2})
    for index, state in mixed.states("handed").items():
        assert state.leader_epoch == before[index].leader_epoch + 1, "once for the leaving of a broker"
    mixed.bring_back(OTHER)
    mixed.restore_leaders("handed")


def test_an_unclean_election(mixed: Mixed, long_run: bool) -> None:
    if not long_run:
        pytest.skip("with --long")
    mixed.create("unclean", [[3, 2]])
    mixed.produce("unclean", 0, b"both")
    mixed.kill(KAFKA)
    wait_until(lambda: mixed.states("unclean")[0].isr == (3,), 20, "the smaller ISR")
    mixed.produce("unclean", 0, b"lost")
    mixed.kill(OTHER)
    wait_until(lambda: mixed.states("unclean")[0].leader == -1, 20, "no leader")
    mixed.bring_back(KAFKA)
    assert mixed.states("unclean")[0].leader == -1
    mixed.configure(OURS, TOPIC, "unclean", unclean_leader_election_enable="true")
    wait_until(lambda: mixed.states("unclean")[0].leader == 2, 20, "an unclean leader")
    assert mixed.states("unclean")[0].isr == (2,)
    assert mixed.produce("unclean", 0, b"instead") == 1
    mixed.bring_back(OTHER)
    mixed.wait_in_sync("unclean", "kept", "lag", "handed")
    assert b"leader_recovery_state" not in (mixed.node("/brokers/topics/unclean/partitions/0/state") or b"")


def test_a_log_directory_of_a_kafka_fails(mixed: Mixed) -> None:
    """Its partitions are led and replicated by others; the broker serves on with its other one."""
    mixed.create("disk", [[3, 1, 2]] * 4)
    for partition in range(4):
        mixed.produce("disk", partition, b"x")
    lost = {int(folder.name.split("-")[1]) for folder in mixed.folders(OTHER, "disk-*") if folder.parent.name == "x"}
    assert 0 < len(lost) < 4
    x = mixed.work / f"kafka-{OTHER}" / "x"
    x.rename(x.with_name("gone"))
    x.write_text("a file where the log directory was")
    try:
        offline = {index: [OTHER] if index in lost else [] for index in range(4)}
        mixed.wait_view("disk", offline, itemgetter("OfflineReplicas"))
        mixed.wait_leaders("disk", {index: OURS if index in lost else OTHER for index in range(4)})
        for partition in range(4):
            assert mixed.produce("disk", partition, b"y") == 1
        assert not [path for path in mixed.nodes() if path.startswith("/log_dir_event_notification/")]
    finally:
        mixed.stop(OTHER)
        x.unlink()
        x.with_name("gone").rename(x)
        mixed.bring_back(OTHER)
    mixed.restore_leaders("disk")


def test_the_controller_moves_and_nothing_else_does(mixed: Mixed) -> None:
    """From ours to a Kafka, to the other, and back."""
    mixed.create("still", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    for partition in range(3):
        mixed.produce("still", partition, b"x")
    mixed.wait_all_told("still")
    before = mixed.every_state()
    for turn, broker_id in enumerate((KAFKA, OURS, OTHER, OURS)):
        mixed.move_controller(broker_id)
        assert mixed.every_state() == before
        mixed.wait_all_told("still")
        for partition in range(3):
            assert mixed.produce("still", partition, b"y") == turn + 1
        mixed.create(f"by-{broker_id}-{turn}", [[1, 2], [2, 3], [3, 1]])
        mixed.delete(f"by-{broker_id}-{turn}")


def test_the_controller_dies(mixed: Mixed, long_run: bool) -> None:
    """Ours; with --long a Kafka too, and ours once more."""
    mixed.create("dying", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="2")
    for partition in range(3):
        mixed.produce("dying", partition, b"x")
    for turn, broker_id in enumerate((OURS, KAFKA, OURS) if long_run else (OURS,)):
        mixed.move_controller(broker_id)
        before = mixed.states("dying")
        mixed.kill(broker_id)
        mixed.wait_gone(broker_id)
        wait_until(lambda broker_id=broker_id: mixed.controller_id() not in (-1, broker_id), 20, "the next controller")
        for index, state in before.items():
            first = next(each for each in mixed.assignment("dying")[index] if each != broker_id)
            wanted = first if state.leader == broker_id else state.leader
            mixed.wait_leader("dying", index, wanted)
            wait_until(lambda index=index, gone=broker_id: gone not in mixed.states("dying")[index].isr, 20, "the ISR")
            assert mixed.states("dying")[index].leader_epoch > state.leader_epoch
            assert mixed.produce("dying", index, b"y") == 2 * turn + 1
        mixed.wait_all_told("dying")
        mixed.bring_back(broker_id)
        mixed.wait_in_sync("dying")
        for partition in range(3):
            assert mixed.produce("dying", partition, b"z") == 2 * turn + 2
        mixed.restore_leaders("dying")


@pytest.mark.parametrize(("before", "after"), [(KAFKA, OURS), (OURS, KAFKA)])
def test_the_next_controller_ends_what_was_begun(mixed: Mixed, before: int, after: int, long_run: bool) -> None:
    """A deletion and moves that wait for a dead broker."""
    if before == OURS and not long_run:
        pytest.skip("with --long")
    mixed.move_controller(before)
    going, moving = f"going-{before}", f"moving-{before}"
    mixed.create(going, [[1, 3], [2, 3]])
    mixed.create(moving, [[1, 2], [2, 1]])
    for value in range(20):
        mixed.produce(moving, 0, b"%d" % value)
    mixed.pause(OTHER)
    moves = {(moving, 0): [3, 2], (moving, 1): [1, 3]}
    mixed.reassign(moves)
    mixed.begin_deletion(going)
    mixed.kill(OTHER)
    mixed.wait_gone(OTHER)
    assert mixed.node(f"/admin/delete_topics/{going}") is not None
    adding = mixed.topic_node(moving)["adding_replicas"]
    assert adding == {"0": [3], "1": [3]}

    mixed.move_controller(after)
    assert mixed.topic_node(moving)["adding_replicas"] == adding
    listed = mixed.ask_controller("ListPartitionReassignments", 0, {"TimeoutMs": 5000, "Topics": None})
    (found,) = listed["Topics"]
    assert {each["PartitionIndex"]: each["AddingReplicas"] for each in found["Partitions"]} == {0: [3], 1: [3]}
    for broker_id in mixed.running():
        assert not mixed.partitions(broker_id, going)
    assert mixed.produce(moving, 0, b"meanwhile") == 20
    mixed.bring_back(OTHER)
    mixed.wait_deleted(going)
    mixed.wait_reassigned(moves)
    mixed.wait_in_sync(moving)
    mixed.wait_replicas(moving, {0: [2, 3], 1: [1, 3]})
    assert mixed.produce(moving, 0, b"after") == 21
    if before == KAFKA and long_run:
        # A Kafka that is deposed while it deletes keeps half a batch of orders and fails at all in its next term.
        mixed.stop(KAFKA)
        mixed.bring_back(KAFKA)


def test_old_tools_ask_by_a_node(mixed: Mixed, long_run: bool) -> None:
    if not long_run:
        pytest.skip("with --long")
    mixed.create("asked", [[1, 2]])
    mixed.kill(OURS)
    mixed.wait_leader("asked", 0, 2)
    mixed.bring_back(OURS)
    mixed.wait_in_sync("asked")
    mixed.move_controller(OURS)
    path = "/admin/preferred_replica_election"
    mixed.put(path, '{"version":1,"partitions":[{"topic":"asked","partition":0},{"topic":"ghost","partition":7}]}')
    mixed.wait_leader("asked", 0, 1)
    wait_until(lambda: mixed.node(path) is None, 20, "the end of the election")


def test_sessions_end_while_brokers_stand_still(mixed: Mixed, long_run: bool) -> None:
    """A Kafka's, and then that of our controller: it comes back as a broker like others, and orders nothing."""
    if not long_run:
        pytest.skip("with --long")
    mixed.move_controller(OURS)
    mixed.create("stalled", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="2")
    for turn, broker_id in enumerate((KAFKA, OURS)):
        mixed.pause(broker_id)
        try:
            mixed.wait_gone(broker_id)
            wait_until(lambda broker_id=broker_id: mixed.controller_id() not in (-1, broker_id), 20, "a controller")
            after = mixed.controller_id()
            for partition in range(3):
                first = next(each for each in mixed.assignment("stalled")[partition] if each != broker_id)
                mixed.wait_leader("stalled", partition, first)
        finally:
            mixed.resume(broker_id)
        mixed.wait_registered(broker_id)
        mixed.wait_in_sync("stalled")
        for partition in range(3):
            assert mixed.produce("stalled", partition, b"x") == turn
        assert mixed.controller_id() == after
        assert {mixed.metadata(each)["ControllerId"] for each in mixed.brokers} == {after}
        mixed.restore_leaders("stalled")
