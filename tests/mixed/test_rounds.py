"""Two Apache Kafkas and two of ours in one cluster, hurt in rounds under load, with clients of librdkafka and Java.

`pytest tests/mixed/test_rounds.py --rounds 200 --seed 7 -s` runs as many as one likes; `-s` shows them.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.cluster_play import play
from tests.mixed.complaints import known_complaints
from tests.mixed.kafka_node import KafkaNode
from tests.mixed.rounds import scenario, verify_replicas
from tests.support.cluster import KAFKA, OURS
from tests.support.java import need_java

ROUNDS, LONG_ROUNDS, FAULTS_A_ROUND = 1, 20, 1

pytestmark = pytest.mark.timeout(0)  # everything that waits in a round has a deadline


def test_nothing_is_lost_between_kinds(tmp_path: Path, long_run: bool, request: pytest.FixtureRequest) -> None:
    need_java("3.9.2", compiler=True)
    seed = request.config.getoption("--seed")
    rounds = request.config.getoption("--rounds") or (LONG_ROUNDS if long_run else ROUNDS)
    print(f"seed {seed}", flush=True)
    with scenario(tmp_path, {1: KAFKA, 2: KAFKA, 3: OURS, 4: OURS}) as traffic:
        cluster = traffic.cluster
        play(cluster, traffic, random.Random(seed), rounds, FAULTS_A_ROUND, lambda: verify_replicas(cluster))
        complaints = {
            kind for node in cluster.nodes.values() if isinstance(node, KafkaNode) for kind in node.complaints()
        }
    new = complaints - known_complaints()
    assert not new, f"Kafka complains of what it never did among its own: {sorted(new)}"
