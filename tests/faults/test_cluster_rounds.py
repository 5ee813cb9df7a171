"""Three brokers under one ZooKeeper are killed, paused, moved about and restarted under load, in rounds.

`pytest tests/faults/test_cluster_rounds.py --rounds 200 --seed 7 -s` runs as many as one likes; `-s` shows them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cluster_checks import COMPACTED, check_everything
from tests.faults.cluster_faults import FAULTS, GROWING, Deck, Scene, create_topic
from tests.faults.cluster_rounds import Answer, Cluster, PyNode
from tests.faults.cluster_traffic import At, Sender, Traffic, WireWriter
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


def make_topics(cluster: Cluster) -> None:
    for name, count in PARTITIONS.items():
        configs: dict[str, Any] = {"segment_bytes": "131072", "index_interval_bytes": "1024"}
        if name == COMPACTED:
            configs |= {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_bytes": "32768"}
        if name == "safe":
            configs["min_insync_replicas"] = "2"
        create_topic(cluster, name, count, **configs)


def traffic_of(cluster: Cluster) -> Traffic:
    producers: list[Sender | WireWriter] = [
        Sender("one", cluster, {"plain": PARTITIONS["plain"], "safe": PARTITIONS["safe"]}),
        Sender("two", cluster, {name: PARTITIONS[name] for name in ("plain", "wire", GROWING)}),
        Sender("keyed", cluster, {COMPACTED: PARTITIONS[COMPACTED]}, keys=20),
    ]
    producers += [WireWriter(f"wire{index}", cluster, ("wire", index)) for index in range(WIRE_WRITERS)]
    return Traffic(cluster, producers, "watchers", ["plain", "safe", "wire", GROWING])


def delete_records(cluster: Cluster, traffic: Traffic, ends: dict[At, int], dealer: random.Random) -> None:
    """Up to somewhere, of half of the partitions: logs stay short, and start where no batch does."""
    chosen = {at: dealer.randrange(end + 1) for at, end in ends.items() if dealer.random() < 0.5}
    for broker_id in cluster.nodes:
        led = {at: offset for at, offset in chosen.items() if cluster.partitions()[at][0] == broker_id}
        topics: dict[str, list[Answer]] = {}
        for (topic, index), offset in led.items():
            topics.setdefault(topic, []).append({"PartitionIndex": index, "Offset": offset})
        asked = [{"Name": topic, "Partitions": partitions} for topic, partitions in topics.items()]
        with cluster.client(broker_id, 60) as client:
            answer = client.call("DeleteRecords", 1, {"Topics": asked, "TimeoutMs": 30000})
        codes = {each["ErrorCode"] for topic in answer["Topics"] for each in topic["Partitions"]}
        assert codes <= {0, 6, 1}, answer  # a preferred election may come in between; an earlier start is further on
    traffic.forget_below(chosen.items())


def test_nothing_is_lost_whatever_happens(
    cluster: Cluster, long_run: bool, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed") or time.time_ns() % 1_000_000
    rounds = request.config.getoption("--rounds") or (LONG_ROUNDS if long_run else ROUNDS)
    dealer = random.Random(seed)
    deck = Deck(dealer)
    print(f"seed {seed}", flush=True)
    make_topics(cluster)
    cluster.wait_until_settled()
    with traffic_of(cluster) as traffic:
        for number in range(rounds):
            began = time.monotonic()
            traffic.produce()
            for name in deck.deal(FAULTS_A_ROUND):
                traffic.wait_for_progress()
                print(f"round {number} {time.monotonic() - began:6.1f} {name}", flush=True)
                FAULTS[name](Scene(cluster, traffic, dealer))
            cluster.heal()
            cluster.wait_until_settled()
            traffic.wait_for_progress()
            traffic.hold()
            print(f"round {number} {time.monotonic() - began:6.1f} checks", flush=True)
            ends = check_everything(cluster, traffic)
            delete_records(cluster, traffic, ends, dealer)
            print(f"round {number} {time.monotonic() - began:6.1f} done, {sum(ends.values())} records", flush=True)
