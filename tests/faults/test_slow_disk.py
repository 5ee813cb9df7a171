"""One log directory on a disk that takes 50 ms for every write: the other one's partitions do not notice."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import pytest

from pybroker.storage.tools.verify import Verification
from tests.faults.writers import Writer, check, wrote
from tests.support import slow_disk
from tests.support.broker import BrokerProcess, TwoDirectories, wait_until
from tests.support.local_cluster import ClusterBroker, OurCluster
from tests.support.records import batch
from tests.support.zookeeper import ZooKeeperServer

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="tells the disks apart by /proc"),
]

WRITE_MS = 50
PRODUCES = 400
ROUNDS, LONG_ROUNDS = 2, 20
QUICK, SLOW = "quick", "slow"  # topics, in x and y
HELD_UP = re.compile(r"The event loop was held up for (\d+) ms")


class SlowBroker(TwoDirectories):
    """Its directory y is the slow one."""

    def command(self) -> list[str]:
        return slow_disk.over(super().command(), self.data_dir / "y", WRITE_MS)


def _produce_times(broker: BrokerProcess) -> list[float]:
    """How long each produce to the quick disk took, in ms, ascending."""
    times = []
    with broker.client() as client:
        for _ in range(PRODUCES):
            started = time.perf_counter()
            assert client.produce(QUICK, batch([b"value"]))["ErrorCode"] == 0
            times.append((time.perf_counter() - started) * 1000)
            time.sleep(0.002)
    return sorted(times)


def test_a_slow_disk_is_no_other_disks_business(tmp_path: Path, long_run: bool) -> None:
    data = tmp_path / "data"
    with SlowBroker(data) as broker:
        with broker.client() as client:
            client.create_topic(QUICK)
            client.create_topic(SLOW, segment_bytes="1048576", index_interval_bytes="1024")
        assert (data / "x" / f"{QUICK}-0").is_dir()
        assert (data / "y" / f"{SLOW}-0").is_dir()
        writers = [
            Writer("plain", SLOW, 0, acks=1, idempotent=False),
            Writer("idempotent-1", SLOW, 0, acks=1, idempotent=True),
            Writer("idempotent-all", SLOW, 0, acks=-1, idempotent=True, size=1500),
        ]
        for number in range(LONG_ROUNDS if long_run else ROUNDS):
            ended = threading.Event()
            threads = [writer.thread(broker, stop=ended.is_set) for writer in writers]
            goal = max(len(writer.acknowledged) for writer in writers) + 5
            wait_until(lambda goal=goal: wrote(writers, goal), 60, "writing")
            held_up = len(_stalls(broker))
            times = _produce_times(broker)
            assert times[PRODUCES * 95 // 100] < WRITE_MS / 2, times[-20:]
            assert len(_stalls(broker)) - held_up < 5
            wait_until(lambda goal=goal: wrote(writers, goal + 5), 60, "writing")
            if number % 2:
                ended.set()
                for thread in threads:
                    thread.join(60)
                broker.restart()
            else:
                broker.kill()
                for thread in threads:
                    thread.join(60)
                broker.start()
            with broker.client() as client:
                assert check(client, writers) > 0
    found = [each for each in Verification([data / "x", data / "y"], deep=True).run() if each.severity == "error"]
    assert found == []


def _stalls(broker: SlowBroker) -> list[int]:
    """How often the broker's loop was held up as long as a write takes, in ms."""
    return [int(ms) for ms in HELD_UP.findall(broker.log_text()) if int(ms) > WRITE_MS * 0.8]


class SlowFollower(ClusterBroker):
    """Its log directory y is the slow one."""

    def command(self) -> list[str]:
        return slow_disk.over(super().command(), self.data_dir / "y", WRITE_MS)


def test_a_follower_with_a_slow_disk(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """What it follows on its quick disk is replicated as quickly as ever; it leads both in the end, with the same."""
    data = tmp_path / "data" / "broker-2"
    settings = {"zookeeper.session.timeout.ms": 2000, "min.insync.replicas": 1}
    where = f"{zookeeper.address}/slow{tmp_path}"
    own = {2: {"log.dirs": f"{data}/x,{data}/y"}}
    cluster = OurCluster(where, tmp_path, settings, count=2, own=own)
    follower = cluster.brokers[2] = SlowFollower(cluster.plan, 2)
    follower.data_dir = data
    with cluster:
        with cluster[1].client() as client:
            for topic in (QUICK, SLOW):
                assigned = [{"PartitionIndex": 0, "BrokerIds": [1, 2]}]
                wanted = {"Name": topic, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
                wanted["Assignments"] = assigned
                answer = client.call("CreateTopics", 5, {"Topics": [wanted], "timeoutMs": 30000})["Topics"][0]
                assert answer["ErrorCode"] == 0, answer
        wait_until(lambda: (data / "y" / f"{SLOW}-0").is_dir(), 30, "the replica on the slow disk")
        assert (data / "x" / f"{QUICK}-0").is_dir()
        writer = Writer("idempotent", SLOW, 0, acks=-1, idempotent=True)
        ended = threading.Event()
        thread = writer.thread(cluster[1], stop=ended.is_set)
        wait_until(lambda: wrote([writer], 10), 60, "writing")
        before = len(writer.acknowledged)
        times = _produce_times(cluster[1])
        assert times[PRODUCES // 2] < WRITE_MS / 2, times[-20:]
        wait_until(lambda: wrote([writer], before + 10), 60, "writing")
        ended.set()
        thread.join(60)
        cluster[1].stop()  # hands its leadership over
        with follower.client(timeout=60) as client:
            assert check(client, [writer]) > 0
            assert client.end_offset(QUICK) == PRODUCES
