"""Three brokers under one ZooKeeper are killed, paused, moved about and restarted under load, in rounds.

`pytest tests/faults/test_cluster_rounds.py --rounds 200 --seed 7 -s` runs as many as one likes; `-s` shows them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cluster_checks import COMPACTED
from tests.faults.cluster_faults import GROWING, make_topics
from tests.faults.cluster_play import play
from tests.faults.cluster_rounds import Cluster, PyNode
from tests.faults.cluster_traffic import Sender, Traffic, WireWriter
from tests.support.zookeeper import ZooKeeperServer, need_zookeeper

ROUNDS, LONG_ROUNDS = 3, 10
FAULTS_A_ROUND = 2  # so that a long run has them all
SESSION_MS = 3000
PARTITIONS = {"plain": 36, "safe": 36, "wire": 6, GROWING: 6, COMPACTED: 16}  # 100
WIRE_WRITERS = 4

pytestmark = pytest.mark.timeout(0)  # everything that waits in a round has a deadline


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_zookeeper()
    zookeeper = ZooKeeperServer(tmp_path / "zookeeper")
    settings = {
        "zookeeper.connect": zookeeper.address,
        "zookeeper.session.timeout.ms": SESSION_MS,
        "replica.lag.time.max.ms": 3000,
        "replica.high.watermark.checkpoint.interval.ms": 500,
        "leader.imbalance.check.interval.seconds": 5,
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 10,
        "group.initial.rebalance.delay.ms": 0,
        "log.flush.scheduler.interval.ms": 500,
        "log.flush.offset.checkpoint.interval.ms": 1000,
        "log.segment.delete.delay.ms": 1000,
        "log.retention.check.interval.ms": 2000,
        "log.cleaner.backoff.ms": 1000,
    }
    nodes = [PyNode(broker_id, tmp_path, settings) for broker_id in (1, 2, 3)]
    with Cluster(nodes, zookeeper, SESSION_MS / 1000) as cluster:
        yield cluster


def traffic_of(cluster: Cluster) -> Traffic:
    producers: list[Sender | WireWriter] = [
        Sender("one", cluster, {"plain": PARTITIONS["plain"], "safe": PARTITIONS["safe"]}),
        Sender("two", cluster, {name: PARTITIONS[name] for name in ("plain", "wire", GROWING)}),
        Sender("keyed", cluster, {COMPACTED: PARTITIONS[COMPACTED]}, keys=20),
    ]
    producers += [WireWriter(f"wire{index}", cluster, ("wire", index)) for index in range(WIRE_WRITERS)]
    return Traffic(cluster, producers, "watchers", ["plain", "safe", "wire", GROWING])


def test_nothing_is_lost_whatever_happens(cluster: Cluster, long_run: bool, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed")
    rounds = request.config.getoption("--rounds") or (LONG_ROUNDS if long_run else ROUNDS)
    print(f"seed {seed}", flush=True)
    make_topics(cluster, PARTITIONS)
    cluster.wait_until_settled()
    with traffic_of(cluster) as traffic:
        play(cluster, traffic, random.Random(seed), rounds, FAULTS_A_ROUND)
