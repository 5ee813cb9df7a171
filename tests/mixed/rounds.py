"""The scenario of the mixed rounds: four brokers, 60 partitions with three replicas each, clients of both kinds."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.faults.cluster_checks import COMPACTED
from tests.faults.cluster_faults import GROWING, make_topics
from tests.faults.cluster_rounds import Cluster, Node, PyNode
from tests.faults.cluster_traffic import NumberingProducer, Sender, Traffic, WireWriter
from tests.mixed.java_clients import JavaMember, JavaSender
from tests.mixed.kafka_node import KafkaNode
from tests.support.cluster import KAFKA
from tests.support.java import CLASSES, jars, java, program
from tests.support.zookeeper import ZooKeeperServer

RELEASE = "3.9.2"
SESSION_MS, FACTOR = 6000, 3
PARTITIONS = {"plain": 20, "safe": 20, "wire": 4, GROWING: 4, COMPACTED: 12}
SETTINGS = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": 3500,  # shorter than a session, so that ISRs shrink before brokers count as dead
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "leader.imbalance.check.interval.seconds": 5,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": FACTOR,
    "group.initial.rebalance.delay.ms": 0,
    "log.flush.scheduler.interval.ms": 500,
    "log.flush.offset.checkpoint.interval.ms": 1000,
    "log.flush.start.offset.checkpoint.interval.ms": 500,  # Kafka's tool can't compare logs that start elsewhere
    "log.segment.delete.delay.ms": 1000,
    "log.retention.check.interval.ms": 2000,
    "log.cleaner.backoff.ms": 1000,
    "controlled.shutdown.retry.backoff.ms": 500,
}
VERIFIED = ("plain", "safe", "wire", GROWING)
VERIFY_S = 90.0
_REPORT = re.compile(r"max lag is (\d+) for partition (\S+) at offset (\d+) among (\d+) partitions")


@contextmanager
def scenario(directory: Path, kinds: Mapping[int, str]) -> Iterator[Traffic]:
    """Runs the brokers and yields the clients, which produce when they are told to."""
    zookeeper = ZooKeeperServer(directory / "zookeeper")
    settings = SETTINGS | {"zookeeper.connect": zookeeper.address}
    nodes: list[Node] = [
        KafkaNode(each, directory, zookeeper, settings) if kind == KAFKA else PyNode(each, directory, settings)
        for each, kind in kinds.items()
    ]
    with Cluster(nodes, zookeeper, SESSION_MS / 1000, FACTOR) as cluster:
        make_topics(cluster, PARTITIONS)
        cluster.wait_until_settled()
        command = program(RELEASE, directory, "RoundClient")
        counts = {"plain": PARTITIONS["plain"], "safe": PARTITIONS["safe"]}
        java_sender = JavaSender("java", cluster, command, counts)
        producers: list[NumberingProducer] = [
            java_sender,
            Sender("native", cluster, counts | {GROWING: PARTITIONS[GROWING]}),
            Sender("keyed", cluster, {COMPACTED: PARTITIONS[COMPACTED]}, keys=20),
            *(WireWriter(f"wire{index}", cluster, ("wire", index)) for index in range(2)),
        ]
        traffic = Traffic(cluster, producers, "watchers", VERIFIED)
        traffic.members.append(JavaMember("java-member", cluster, command, traffic.group, VERIFIED, traffic.seen))
        try:
            with traffic:
                yield traffic
        finally:
            java_sender.close()


def verify_replicas(cluster: Cluster) -> None:
    """Kafka's own tool reads all replicas from the beginning: nobody lags, and no two differ."""
    tool = CLASSES["ReplicaVerificationTool"]
    command = [*java(f"{jars(RELEASE)}/*", tool), "--broker-list", cluster.bootstrap, "--topics-include"]
    command += ["|".join(VERIFIED), "--time", "-2", "--report-interval-ms", "500"]
    command += ["--max-wait-ms", "50"]  # it takes a segment in a step, and waits for partitions that have no more
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    limit = threading.Timer(VERIFY_S, process.kill)
    limit.start()
    told: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(line.rstrip())
            report = _REPORT.search(line)
            if report is not None and report[1] == "0":
                break
        else:
            raise AssertionError(f"ReplicaVerificationTool: {told[-20:]}")
    finally:
        limit.cancel()
        process.kill()
        process.wait()
    differing = [line for line in told if "match" in line]
    assert not differing, differing[:5]
