"""The tools of Apache Kafka 3.9.2 that look at clusters and change them, against three brokers under ZooKeeper."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.support.broker import wait_until
from tests.support.go import BUILD_SECONDS, need_go
from tests.support.java import need_java, run_tool, tool_command
from tests.support.local_cluster import OurCluster
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 120)

RELEASE = "3.9.2"
BROKERS = (1, 2, 3)
FETCH_BYTES = 100_000  # so that a throttled replica gets little before it has to wait
SETTINGS = {
    "zookeeper.session.timeout.ms": 2000,
    "replica.lag.time.max.ms": 3000,
    "replica.fetch.max.bytes": FETCH_BYTES,
    "replica.fetch.backoff.ms": 200,
    "auto.leader.rebalance.enable": "false",
}
RATES = {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}
REPLICAS = {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}


@pytest.fixture(scope="module")
def cluster(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    need_java(RELEASE)
    folder = tmp_path_factory.mktemp("tools")
    with OurCluster(f"{zookeeper.address}/tools{folder}", folder, SETTINGS, ids=BROKERS) as made:
        yield made


def tool(cluster: OurCluster, name: str, *arguments: str) -> str:
    """What it wrote, without log lines."""
    text = run_tool(RELEASE, name, "--bootstrap-server", cluster.bootstrap, *arguments).stdout
    return "\n".join(line for line in text.splitlines() if not re.match(r"SLF4J|log4j|\[.*\] (INFO|WARN)", line))


def admin(cluster: OurCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def make_topic(cluster: OurCluster, name: str, assignment: list[list[int]], megabytes: int = 0, **config: str) -> None:
    """A topic whose partitions have these replicas, once all are in sync; with records in partition 0."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    topic = NewTopic(name, len(assignment), replica_assignment=assignment, config=settings)
    client = admin(cluster)
    client.create_topics([topic])[name].result(30)
    wait_until(lambda: isrs(cluster, name) == [sorted(replicas) for replicas in assignment], 30, "all in sync")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5})
    for _ in range(megabytes * 100):
        producer.produce(name, bytes(10_000), partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0


def partitions(cluster: OurCluster, topic: str) -> list[Any]:
    found = admin(cluster).list_topics(topic, timeout=10).topics[topic].partitions
    return [found[index] for index in sorted(found)]


def isrs(cluster: OurCluster, topic: str) -> list[list[int]]:
    return [sorted(each.isrs) for each in partitions(cluster, topic)]


def replicas(cluster: OurCluster, topic: str) -> list[list[int]]:
    return [each.replicas for each in partitions(cluster, topic)]


def leaders(cluster: OurCluster, topic: str) -> list[int]:
    return [each.leader for each in partitions(cluster, topic)]


@contextmanager
def without(cluster: OurCluster, broker_id: int, topic: str) -> Iterator[None]:
    """One broker is stopped; afterwards it is back, and in sync with what the topic has on it."""
    before = isrs(cluster, topic)
    cluster[broker_id].stop()
    try:
        yield
    finally:
        cluster[broker_id].start()
        wait_until(lambda: isrs(cluster, topic) == before, 40, "the return of the stopped broker")


# --- topics


def test_topics_under_replicated_under_min_isr_and_unavailable(cluster: OurCluster) -> None:
    out = tool(
        cluster, "TopicCommand", "--create", "--topic", "made", "--partitions", "2", "--replication-factor", "3",
        "--config", "min.insync.replicas=3",
    )  # fmt: skip
    assert "Created topic made." in out
    make_topic(cluster, "alone", [[3]])
    make_topic(cluster, "pair", [[1, 2]])
    wait_until(lambda: isrs(cluster, "made") == [[1, 2, 3]] * 2, 30, "all in sync")
    looks = ("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions")
    for look in looks:
        assert tool(cluster, "TopicCommand", "--describe", look) == ""
    at_min = tool(cluster, "TopicCommand", "--describe", "--at-min-isr-partitions", "--exclude-internal")
    assert listed(at_min) == ["alone-0", "made-0", "made-1"]
    with without(cluster, 3, "made"):
        wait_until(lambda: isrs(cluster, "made") == [[1, 2]] * 2, 30, "the loss")
        under, too_few, gone = (listed(tool(cluster, "TopicCommand", "--describe", look)) for look in looks)
        assert under == ["made-0", "made-1"]
        assert too_few == ["alone-0", "made-0", "made-1"]  # what has no leader counts
        assert gone == ["alone-0"]
        described = tool(cluster, "TopicCommand", "--describe", "--topic", "alone")
        assert re.search(r"Leader: none\s+Replicas: 3\s+Isr: (3)?", described)
    tool(cluster, "TopicCommand", "--delete", "--topic", "made")
    wait_until(lambda: "made" not in tool(cluster, "TopicCommand", "--list").split(), 30, "the deletion")


def listed(described: str) -> list[str]:
    return sorted(f"{topic}-{index}" for topic, index in re.findall(r"Topic: (\S+)\s+Partition: (\d+)", described))


# --- reassignment


def plan(folder: Path, topic: str, assignment: dict[int, list[int]]) -> str:
    """The file that the tool reads."""
    wanted = [{"topic": topic, "partition": index, "replicas": to} for index, to in assignment.items()]
    file = folder / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": wanted}))
    return str(file)


def configs(cluster: OurCluster, kind: str, name: str, wanted: set[str]) -> dict[str, str]:
    """Which of these settings of a "broker" or "topic" somebody has set."""
    resource, client = ConfigResource(kind, name), admin(cluster)
    found = client.describe_configs([resource])[resource].result(30)
    return {key: each.value for key, each in found.items() if key in wanted and not each.is_default}


def reassign(cluster: OurCluster, *arguments: str) -> str:
    return tool(cluster, "ReassignPartitionsCommand", *arguments)


def test_a_plan_is_generated_executed_and_verified(cluster: OurCluster, tmp_path: Path) -> None:
    make_topic(cluster, "spread", [[1, 2], [2, 1]], megabytes=1)
    wanted = tmp_path / "topics.json"
    wanted.write_text(json.dumps({"version": 1, "topics": [{"topic": "spread"}]}))
    out = reassign(cluster, "--generate", "--topics-to-move-json-file", str(wanted), "--broker-list", "2,3")
    proposed = json.loads(out.partition("Proposed partition reassignment configuration")[2])
    assert all(sorted(each["replicas"]) == [2, 3] for each in proposed["partitions"])
    file = plan(tmp_path, "spread", {each["partition"]: each["replicas"] for each in proposed["partitions"]})
    out = reassign(cluster, "--execute", "--reassignment-json-file", file)
    assert "Successfully started partition reassignments for spread-0,spread-1" in out
    wait_until(lambda: isrs(cluster, "spread") == [[2, 3], [2, 3]], 40, "the move")
    out = reassign(cluster, "--verify", "--reassignment-json-file", file)
    assert len(re.findall(r"Reassignment of partition spread-\d is completed\.", out)) == 2
    assert "No partition reassignments found." in reassign(cluster, "--list")


def test_a_throttled_reassignment(cluster: OurCluster, tmp_path: Path) -> None:
    """It gets no further than its rate lets it, is sped up while under way, and --verify takes the throttles away."""
    make_topic(cluster, "slow", [[1, 2]], megabytes=4)
    file = plan(tmp_path, "slow", {0: [2, 3]})
    out = reassign(cluster, "--execute", "--reassignment-json-file", file, "--throttle", "1000")
    assert "The inter-broker throttle limit was set to 1000 B/s" in out
    assert "replicas: 2,3,1. adding: 3. removing: 1." in reassign(cluster, "--list")
    for broker in map(str, BROKERS):
        assert configs(cluster, "broker", broker, RATES) == dict.fromkeys(RATES, "1000")
    assert configs(cluster, "topic", "slow", REPLICAS) == {
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "0:3",
    }
    out = reassign(cluster, "--verify", "--reassignment-json-file", file)
    assert "Reassignment of partition slow-0 is still in progress." in out
    assert "Clearing" not in out
    copied = (cluster[3].data_dir / "slow-0" / f"{0:020d}.log").stat().st_size
    assert 0 <= copied < 20 * FETCH_BYTES  # a piece in 11 seconds, when the rate's windows have passed
    assert isrs(cluster, "slow") == [[1, 2]]

    out = reassign(
        cluster, "--execute", "--additional", "--reassignment-json-file", file, "--throttle", "100000000"
    )
    assert "The inter-broker throttle limit was set to 100000000 B/s" in out
    wait_until(lambda: replicas(cluster, "slow") == [[2, 3]], 60, "the move")
    out = reassign(cluster, "--verify", "--reassignment-json-file", file)
    assert "Reassignment of partition slow-0 is completed." in out
    assert "Clearing broker-level throttles on brokers 1,2,3" in out
    assert "Clearing topic-level throttles on topic slow" in out
    for broker in map(str, BROKERS):
        assert configs(cluster, "broker", broker, RATES) == {}
    assert configs(cluster, "topic", "slow", REPLICAS) == {}


def test_a_throttled_reassignment_is_cancelled(cluster: OurCluster, tmp_path: Path) -> None:
    make_topic(cluster, "stays", [[1, 2]], megabytes=4)
    file = plan(tmp_path, "stays", {0: [3, 2]})
    reassign(cluster, "--execute", "--reassignment-json-file", file, "--throttle", "1000")
    out = reassign(cluster, "--cancel", "--reassignment-json-file", file)
    assert "Successfully cancelled partition reassignment for: stays-0" in out
    assert "No partition reassignments found." in reassign(cluster, "--list")
    # In the order that is left when the new ones are taken out: 3, 2, 1 it was meanwhile.
    wait_until(lambda: replicas(cluster, "stays") == [[2, 1]], 20, "the old assignment")
    wait_until(lambda: not (cluster[3].data_dir / "stays-0").exists(), 20, "the half copy's end")
    for broker in map(str, BROKERS):
        assert configs(cluster, "broker", broker, RATES) == {}
    assert configs(cluster, "topic", "stays", REPLICAS) == {}
    assert isrs(cluster, "stays") == [[1, 2]]


# --- elections


def test_preferred_leaders_are_elected(cluster: OurCluster, tmp_path: Path) -> None:
    make_topic(cluster, "preferred", [[2, 1], [1, 2]])
    with without(cluster, 2, "preferred"):
        wait_until(lambda: leaders(cluster, "preferred") == [1, 1], 30, "the other leader")
    elect = ("LeaderElectionCommand", "--election-type", "preferred", "--topic", "preferred", "--partition")
    assert "Successfully completed leader election (PREFERRED)" in tool(cluster, *elect, "0")
    assert leaders(cluster, "preferred") == [2, 1]
    out = tool(cluster, *elect, "1")
    assert "Valid replica already elected for partitions preferred-1" in out


def test_an_unclean_leader_is_elected_where_there_is_no_other(cluster: OurCluster) -> None:
    make_topic(cluster, "unclean", [[2, 3]], min_insync_replicas="1")
    cluster[3].stop()
    wait_until(lambda: isrs(cluster, "unclean") == [[2]], 30, "the loss of one")
    cluster[2].kill()
    cluster[3].start()
    wait_until(lambda: 3 in admin(cluster).list_topics(timeout=10).brokers, 30, "the return of the other")
    wait_until(lambda: leaders(cluster, "unclean") == [-1], 30, "no leader")
    elect = ("LeaderElectionCommand", "--topic", "unclean", "--partition", "0", "--election-type")
    out = tool(cluster, *elect, "unclean")
    assert "Successfully completed leader election (UNCLEAN) for partitions unclean-0" in out
    assert leaders(cluster, "unclean") == [3]
    cluster[2].start()
    wait_until(lambda: isrs(cluster, "unclean") == [[2, 3]], 40, "both")


# --- replicas


def test_replicas_are_verified(cluster: OurCluster) -> None:
    make_topic(cluster, "alike", [[1, 2, 3], [2, 3, 1]], megabytes=2)
    command = tool_command(
        RELEASE, "ReplicaVerificationTool", "--broker-list", cluster.bootstrap, "--topics-include", "alike",
        "--report-interval-ms", "500",
    )  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:  # it goes on for ever; the test's own timeout ends it otherwise
            said.append(line)
            if "max lag is 0 for partition" in line and sum("max lag is" in each for each in said) >= 2:
                break
        else:
            raise AssertionError("".join(said))
        assert not [each for each in said if "doesn't match" in each or ("max lag is" in each and " 0 for" not in each)]
    finally:
        process.kill()
        process.wait()


# --- settings


def test_settings_of_brokers_and_topics(cluster: OurCluster) -> None:
    make_topic(cluster, "set", [[1, 2, 3]])
    entity = ("--entity-type", "brokers", "--entity-name", "2")
    tool(cluster, "ConfigCommand", "--alter", *entity, "--add-config", "num.replica.fetchers=2")
    wait_until(lambda: "by 2 fetchers now" in cluster[2].log_text(), 20, "the fetchers")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    producer.produce("set", b"x")
    assert producer.flush(20) == 0
    defaults = ("--entity-type", "brokers", "--entity-default")
    tool(cluster, "ConfigCommand", "--alter", *defaults, "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2" in tool(cluster, "ConfigCommand", "--describe", *defaults)
    tool(cluster, "ConfigCommand", "--alter", *entity, "--delete-config", "num.replica.fetchers")
    described = tool(cluster, "ConfigCommand", "--describe", "--all", *entity)
    assert re.search(r"num\.replica\.fetchers=1 sensitive=false synonyms=\{DEFAULT_CONFIG", described)
    assert re.search(r"log\.cleaner\.threads=2 .*DYNAMIC_DEFAULT_BROKER_CONFIG", described)
    tool(cluster, "ConfigCommand", "--alter", *defaults, "--delete-config", "log.cleaner.threads")
    topic = ("--entity-type", "topics", "--entity-name", "set")
    tool(cluster, "ConfigCommand", "--alter", *topic, "--add-config", "follower.replication.throttled.replicas=*")
    assert configs(cluster, "topic", "set", REPLICAS) == {"follower.replication.throttled.replicas": "*"}
    tool(cluster, "ConfigCommand", "--alter", *topic, "--delete-config", "follower.replication.throttled.replicas")
    assert configs(cluster, "topic", "set", REPLICAS) == {}


def test_franz_go_changes_the_cluster(cluster: OurCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    program = need_go(tmp_path_factory.mktemp("go"))
    make_topic(cluster, "go", [[1, 2]], megabytes=1)
    command = [str(program), "cluster", cluster.bootstrap, "go"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "not be greater than double the current value 2" in found.pop("fetchers 9")
    assert found.pop("throttled 0-1").startswith("INVALID_CONFIG")
    assert found.pop("elected again").startswith("ELECTION_NOT_NEEDED")
    assert found == {
        "fetchers 2": "",
        "fetchers": "2",
        "throttled 0:1,0:2": "",
        "replicas": [2, 3],
        "leader before": 3,
        "elected": "",
        "leader": 2,
        "holders": [2, 3],
    }
