"""Replicas move between log directories under load, and the broker is killed at any moment of that."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from pybroker.storage.tools.verify import Verification
from tests.faults.writers import Writer, check, wrote
from tests.support.broker import TwoDirectories, wait_until
from tests.support.wire import Closed

pytestmark = pytest.mark.timeout(1200)

ROUNDS, LONG_ROUNDS = 5, 40
TOPIC = "moving"
SEGMENTS = {"segment_bytes": "65536", "index_interval_bytes": "1024", "segment_index_bytes": "65536"}


def _keep_moving(broker: TwoDirectories, ended: threading.Event, moves: list[int]) -> None:
    """Every partition to and fro, until the broker is gone."""
    try:
        with broker.client() as client:
            while not ended.is_set():
                for name in ("x", "y"):
                    topics = [{"Name": TOPIC, "Partitions": [0, 1, 2]}]
                    dirs = {"Dirs": [{"Path": f"{broker.data_dir}/{name}", "Topics": topics}]}
                    client.call("AlterReplicaLogDirs", 2, dirs)
                    moves.append(1)
                    time.sleep(random.random() * 0.05)
    except (Closed, ConnectionError):
        pass  # the broker was killed: the test's doing


def test_nothing_is_lost_on_the_way(tmp_path: Path, long_run: bool) -> None:
    random.seed(seed := time.time_ns())
    print(f"seed {seed}")
    data = tmp_path / "data"
    moves: list[int] = []
    with TwoDirectories(data) as broker:
        with broker.client() as client:
            client.create_topic(TOPIC, 3, file_delete_delay_ms="0", **SEGMENTS)
        writers = [
            Writer("plain", TOPIC, 0, acks=-1, idempotent=False),
            Writer("idempotent", TOPIC, 1, acks=-1, idempotent=True),
            Writer("large", TOPIC, 2, acks=1, idempotent=True, size=3000),
        ]
        for _ in range(LONG_ROUNDS if long_run else ROUNDS):
            ended = threading.Event()
            threads = [writer.thread(broker) for writer in writers]
            mover = threading.Thread(target=_keep_moving, args=(broker, ended, moves), daemon=True)
            mover.start()
            goal = max(len(writer.acknowledged) for writer in writers) + 20
            wait_until(lambda goal=goal: wrote(writers, goal), 60, "writing")
            time.sleep(random.random() * 0.5)
            broker.kill()
            ended.set()
            for thread in (*threads, mover):
                thread.join(30)
            broker.start()
            with broker.client() as client:
                assert check(client, writers) > 0
        assert len(moves) > ROUNDS
        assert broker.log_text().count("has moved to") > ROUNDS
    found = [each for each in Verification([data / "x", data / "y"], deep=True).run() if each.severity == "error"]
    assert found == []
