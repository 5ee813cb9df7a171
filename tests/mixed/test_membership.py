"""Our broker as a member of a cluster whose controller is Apache Kafka, with each inter.broker.protocol.version."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.mixed.clients import Acknowledged, consume, java_consume, java_produce, produce
from tests.support.broker import wait_until
from tests.support.cluster import KAFKA, OURS, Cluster
from tests.support.java import need_java
from tests.support.records import batch
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(300)

PROTOCOLS = ("3.9", "2.8", "2.6")
CONTROLLER, KAFKA_MEMBER, OUR_MEMBER, OUR_OTHER = 1, 2, 3, 4


@pytest.fixture(params=PROTOCOLS, scope="module")
def running(
    zookeeper: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    long_run: bool,
) -> Iterator[Cluster]:
    """Two of each kind, with two log directories each."""
    need_java("3.9.2")
    if request.param != "3.9" and not long_run:
        pytest.skip("with --long")
    settings = {"inter.broker.protocol.version": request.param, "replica.lag.time.max.ms": "2000"}
    kinds = {CONTROLLER: KAFKA, KAFKA_MEMBER: KAFKA, OUR_MEMBER: OURS, OUR_OTHER: OURS}
    folder = tmp_path_factory.mktemp("mixed")
    with Cluster(folder, zookeeper, kinds, settings, two_directories=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """All four run, under a controller that is Apache Kafka."""
    running.bring_back(*(set(running.brokers) - set(running.running())))
    running.make_controller(CONTROLLER)
    running.wait_registered(*running.brokers)  # a session may have ended while its broker was paused
    return running


def check(cluster: Cluster, topic: str, acknowledged: Acknowledged) -> None:
    """Everything acknowledged is there once, over either kind, and the replicas are the same."""
    cluster.wait_in_sync(topic)
    for broker_id in (CONTROLLER, OUR_MEMBER):
        found = consume(cluster.brokers[broker_id].address, topic, list(cluster.assignment(topic)))
        assert acknowledged.items() <= found.items()
        assert len(set(found.values())) == len(found), "a record is there twice"
    cluster.wait_equal_logs(topic)


def test_clients_reach_partitions_of_either_kind_over_either(cluster: Cluster) -> None:
    cluster.create_topic("reach", {0: [1, 3, 4], 1: [3, 1, 2], 2: [2, 4, 3], 3: [4, 2, 1]})
    acknowledged = produce(cluster, "reach", "native", 80)
    for broker_id in (KAFKA_MEMBER, OUR_OTHER):
        java_produce(cluster.brokers[broker_id].address, "reach", 60)
    for broker_id in (KAFKA_MEMBER, OUR_OTHER):
        found = java_consume(cluster.brokers[broker_id].address, "reach", 200)
        assert {value.decode() for value in acknowledged.values()} <= set(found)
    cluster.wait_in_sync("reach")
    cluster.wait_equal_logs("reach")


@pytest.mark.parametrize("victim", [KAFKA_MEMBER, OUR_MEMBER, CONTROLLER], ids=["kafka", "ours", "controller"])
def test_a_killed_leader_and_follower_comes_back(cluster: Cluster, victim: int) -> None:
    topic = f"killed-{victim}"
    others = [each for each in cluster.brokers if each != victim]
    cluster.create_topic(
        topic,
        {
            0: [victim, *others[:2]],
            1: [victim, *others[1:]],
            2: [others[0], victim, others[1]],
            3: [others[2], victim, others[0]],
        },
    )
    acknowledged = produce(cluster, topic, "before")
    cluster.kill(victim)
    acknowledged |= produce(cluster, topic, "during")
    wait_until(lambda: all(victim not in state.isr for state in cluster.states(topic).values()), 60, "smaller ISRs")
    acknowledged |= produce(cluster, topic, "without")
    cluster.bring_back(victim)
    cluster.wait_in_sync(topic)
    acknowledged |= produce(cluster, topic, "after")
    cluster.elect((topic, index) for index in range(4))
    cluster.wait_leader(topic, 0, victim)
    acknowledged |= produce(cluster, topic, "led again")
    assert len(acknowledged) == 200
    check(cluster, topic, acknowledged)


@pytest.mark.parametrize(
    ("leader", "follower"), [(KAFKA_MEMBER, OUR_MEMBER), (OUR_MEMBER, KAFKA_MEMBER)], ids=["kafka led", "ours led"]
)
def test_a_diverged_log_is_truncated(cluster: Cluster, leader: int, follower: int) -> None:
    topic = f"diverged-{leader}"
    cluster.create_topic(topic, {0: [leader, follower]})
    acknowledged = produce(cluster, topic, "before", 10)
    cluster.wait_equal_logs(topic)
    cluster.pause(follower)
    with cluster.client(leader) as client:
        for number in range(5):  # one of them may be on its way to the follower
            assert client.produce(topic, batch([b"lost-%d" % number]), acks=1)["ErrorCode"] == 0
    diverged = cluster.log_bytes(leader, topic, 0)
    cluster.kill(leader)
    cluster.resume(follower)
    cluster.wait_leader(topic, 0, follower)
    assert len(cluster.log_bytes(follower, topic, 0)) < len(diverged)
    acknowledged |= produce(cluster, topic, "after", 10)
    cluster.bring_back(leader)
    check(cluster, topic, acknowledged)
    assert not cluster.log_bytes(leader, topic, 0).startswith(diverged)


@pytest.mark.parametrize("leaving", [KAFKA_MEMBER, OUR_MEMBER, CONTROLLER], ids=["kafka", "ours", "controller"])
def test_a_leaving_broker_hands_over(cluster: Cluster, leaving: int) -> None:
    topic = f"left-{leaving}"
    others = [each for each in cluster.brokers if each != leaving]
    cluster.create_topic(topic, {0: [leaving, *others[:2]], 1: [others[2], leaving, others[0]]})
    acknowledged = produce(cluster, topic, "before")
    cluster.stop(leaving)
    assert [state.leader for state in cluster.states(topic).values()] == [others[0], others[2]]
    left = [(*others[:2],), (others[2], others[0])]
    wait_until(lambda: [state.isr for state in cluster.states(topic).values()] == left, 20, "ISRs without it")
    acknowledged |= produce(cluster, topic, "without")
    cluster.bring_back(leaving)
    check(cluster, topic, acknowledged)


@pytest.mark.parametrize("stalled", [KAFKA_MEMBER, OUR_MEMBER], ids=["kafka", "ours"])
def test_a_stalled_follower_leaves_the_isr_and_returns(cluster: Cluster, stalled: int) -> None:
    """It stays alive for ZooKeeper only as long as its session: here it outlives replica.lag.time.max.ms no more."""
    topic = f"stalled-{stalled}"
    leader = OUR_OTHER if stalled == KAFKA_MEMBER else KAFKA_MEMBER
    cluster.create_topic(topic, {0: [leader, stalled]})
    acknowledged = produce(cluster, topic, "before", 10)
    cluster.wait_in_sync(topic)
    cluster.pause(stalled)
    try:
        acknowledged |= produce(cluster, topic, "without", 10)
        assert cluster.states(topic)[0].isr == (leader,)
    finally:
        cluster.resume(stalled)
    check(cluster, topic, acknowledged)


def test_fetch_sessions_last_over_many_fetches(cluster: Cluster) -> None:
    """Ours with a Kafka leader and Kafka's with ours: told by what Kafka logs of its requests and its sessions."""
    loggers = {"kafka.request.logger": "DEBUG", "org.apache.kafka.clients.FetchSessionHandler": "DEBUG"}
    node = cluster.brokers[KAFKA_MEMBER]
    served = re.compile(
        rf'"requestApiKey":1,.*"clientId":"broker-{OUR_MEMBER}-fetcher-0",.*"sessionId":(\d+),"sessionEpoch":(\d+)'
    )
    asked = re.compile(
        rf"leaderId={OUR_MEMBER}, .*Built incremental fetch \(sessionId=(\d+), epoch=(\d+)\) for node {OUR_MEMBER}\."
    )
    cluster.create_topic("sessions", {0: [KAFKA_MEMBER, OUR_MEMBER], 1: [OUR_MEMBER, KAFKA_MEMBER]})
    produce(cluster, "sessions", "first", 2)  # Kafka has a logger from when it is first used
    before = len(node.log_text())
    _set_loggers(cluster, loggers)
    try:
        for number in range(10):
            produce(cluster, "sessions", f"part {number}", 2)
        cluster.wait_equal_logs("sessions")
        for lines in (served, asked):
            wait_until(lambda lines=lines: _goes_on(lines, node.log_text()[before:]), 20, "ten fetches of a session")
    finally:
        _set_loggers(cluster, dict.fromkeys(loggers, "INFO"))


def _goes_on(lines: re.Pattern[str], log: str) -> bool:
    """Whether some session has ten epochs, one after the other."""
    epochs: dict[str, list[int]] = defaultdict(list)
    for session, epoch in lines.findall(log):
        epochs[session].append(int(epoch))
    return any(
        found == list(range(found[0], found[0] + len(found))) and len(found) >= 10
        for session, found in epochs.items()
        if session != "0"
    )


def _set_loggers(cluster: Cluster, levels: dict[str, str]) -> None:
    configs = [{"Name": name, "ConfigOperation": 0, "Value": level} for name, level in levels.items()]
    resource = {"ResourceType": 8, "ResourceName": str(KAFKA_MEMBER), "Configs": configs}
    with cluster.client(KAFKA_MEMBER) as client:
        answer = client.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
    assert answer["Responses"][0]["ErrorCode"] == 0, answer


def test_a_lost_log_directory(cluster: Cluster) -> None:
    """The directory becomes a file: the next segment can't be made there."""
    for broker_id, other in ((OUR_MEMBER, KAFKA_MEMBER), (KAFKA_MEMBER, OUR_MEMBER)):
        topic = f"directory-{broker_id}"
        cluster.create_topic(topic, {0: [broker_id, other]}, segment_bytes="2000")
        acknowledged = produce(cluster, topic, "before", 10)
        directory = cluster.folder(broker_id, topic, 0).parent
        aside = directory.rename(directory.with_name("aside"))
        directory.write_text("")
        acknowledged |= produce(cluster, topic, "over" + "x" * 200, 30)
        cluster.wait_leader(topic, 0, other)
        assert cluster.states(topic)[0].isr == (other,)
        assert broker_id in cluster.registered()
        cluster.stop(broker_id)
        directory.unlink()
        aside.rename(directory)
        cluster.bring_back(broker_id)
        check(cluster, topic, acknowledged)


def test_producer_ids_are_unique(cluster: Cluster) -> None:
    asked = {"TransactionalId": None, "TransactionTimeoutMs": 60000, "ProducerId": -1, "ProducerEpoch": -1}
    given = []

    def ask(broker_id: int) -> bool:
        with cluster.client(broker_id) as client:
            answer = client.call("InitProducerId", 3, asked)
        if answer["ErrorCode"] == 0:
            given.append(answer["ProducerId"])
        return bool(answer["ErrorCode"] == 0)

    for broker_id in [*cluster.brokers] * 3:
        wait_until(lambda broker_id=broker_id: ask(broker_id), 20, "a producer id")
    assert len(set(given)) == 12
