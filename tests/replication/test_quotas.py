"""Throttled replicas: which they are, at what rate, and what leader and follower hold back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from pybroker.protocol.rate import WindowedRate
from pybroker.replication.fetch import PartitionReader, Round
from pybroker.replication.fetchers import ReplicaFetchers
from pybroker.replication.quotas import ReplicationQuota, ReplicationQuotas
from tests.replication.cluster_model import RECORD
from tests.replication.test_fetch import Bench as Reading
from tests.replication.test_fetch import ask, parameters, sizes
from tests.replication.test_fetcher import Bench as Fetching
from tests.replication.test_partition import append

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"


def quota(limit: int | None, clock: ManualClock | None = None) -> ReplicationQuota:
    made = ReplicationQuota(WindowedRate(11, 1000, clock or ManualClock()))
    made.limit = limit
    return made


@pytest.mark.parametrize(
    ("setting", "covered"),
    [
        ([], set()),
        (["*"], {0, 1, 2}),
        (["0:1", "1:2", "2:1"], {0, 2}),
        (["0:2"], set()),
        (["", "1:1", ""], {1}),
        (["*", ""], {0, 1, 2}),
    ],
)
def test_which_replicas_are_covered(setting: list[str], covered: set[int]) -> None:
    throttle = quota(1)
    throttle.throttle("t", setting, 1)
    assert {index for index in range(3) if throttle.covers("t", index)} == covered
    assert not throttle.covers("u", 0)
    throttle.throttle("t", [], 1)
    assert not throttle.covers("t", 0)


def test_only_more_than_the_limit_exceeds_it() -> None:
    clock = ManualClock()
    throttle = quota(1000, clock)
    throttle.throttle("t", ["*"], 1)
    throttle.record(1000)
    assert not throttle.holds_back("t", 0)
    throttle.record(1)
    assert throttle.holds_back("t", 0)
    assert not throttle.holds_back("u", 0)
    clock.advance(1002)
    assert not throttle.holds_back("t", 0)
    throttle.limit = 0
    assert throttle.holds_back("t", 0)
    throttle.limit = None
    assert not throttle.holds_back("t", 0)


def test_settings_of_broker_and_topics() -> None:
    config = BrokerConfig.of({"replication.quota.window.num": "2", LEADER_RATE: "7"})
    quotas = ReplicationQuotas(1, config, ManualClock())
    assert (quotas.leader.limit, quotas.follower.limit) == (None, None)  # what stands in a file does not count
    config.apply_dynamic({LEADER_RATE: "10"}, {LEADER_RATE: "20", FOLLOWER_RATE: "30"})
    assert (quotas.leader.limit, quotas.follower.limit) == (10, 30)
    config.apply_dynamic({}, {LEADER_RATE: "20"})
    assert (quotas.leader.limit, quotas.follower.limit) == (20, None)
    quotas.topic_changed("t", {"leader.replication.throttled.replicas": "0:1,1:2"})
    assert (quotas.leader.covers("t", 0), quotas.leader.covers("t", 1), quotas.follower.covers("t", 0)) == (1, 0, 0)
    quotas.topic_changed("t", {"leader.replication.throttled.replicas": "nonsense"})
    assert quotas.leader.covers("t", 0)
    quotas.topic_changed("t", {})
    assert not quotas.leader.covers("t", 0)


# --- the leader


def led(tmp_path: Path, throttle: ReplicationQuota, isr: list[int]) -> Reading:
    """Two partitions of which the first is throttled; broker 2 follows."""
    bench = Reading(tmp_path)
    throttle.throttle("t", ["0:1"], 1)
    bench.reader = PartitionReader(bench.find, lambda: 0, quota=throttle)
    for index, partition in enumerate(bench.partitions):
        partition.index = index
        order = LeaderAndIsrPartitionState(
            leader=1, leader_epoch=5, partition_epoch=1, replicas=[1, 2, 3], isr=isr
        )
        partition.make_leader(order, 0)
    return bench


def throttled(tmp_path: Path, isr: list[int], replica: int) -> tuple[Round, int]:
    throttle = quota(100)
    bench = led(tmp_path, throttle, isr)
    size = append(bench.partitions[0], 5).bytes
    append(bench.partitions[1], 5)
    how = parameters(replica_id=replica)
    first = bench.read([ask(0), ask(1)], how)
    assert sizes(first) == [size, size]
    throttle.record(first.throttled_bytes)
    assert throttle.exceeded
    return bench.read([ask(0), ask(1)], how), size


def test_a_follower_out_of_sync_gets_nothing_above_the_rate(tmp_path: Path) -> None:
    found, size = throttled(tmp_path, [1], 2)
    assert sizes(found) == [0, size]
    assert found.throttled_bytes == 0
    assert found.answers[0][0].held_back


def test_one_in_sync_is_exempt_and_counts(tmp_path: Path) -> None:
    found, size = throttled(tmp_path, [1, 2], 2)
    assert sizes(found) == [size, size]
    assert found.throttled_bytes == size


def test_consumers_are_not_throttled(tmp_path: Path) -> None:
    throttle = quota(0)
    bench = led(tmp_path, throttle, [1])
    size = append(bench.partitions[0], 5).bytes
    throttle.record(1)
    found = bench.read([ask(0)])
    assert (sizes(found), found.throttled_bytes) == ([size], 0)


async def test_a_fetch_that_is_held_back_waits_its_time_and_no_append_wakes_it(tmp_path: Path) -> None:
    throttle = quota(0)
    bench = led(tmp_path, throttle, [1])
    append(bench.partitions[0], 5)
    throttle.record(1)
    waiting = await bench.wait([ask(0)], parameters(replica_id=2, max_wait_ms=50))
    append(bench.partitions[0], 5)
    assert not waiting._woken
    found = await asyncio.wait_for(waiting.result, 5)
    assert sizes(found) == [0]


# --- the follower


class Limited(Fetching):
    """Partition 0 of two is throttled."""

    def __init__(self, limit: int, clock: ManualClock, **settings: Any) -> None:
        super().__init__(**settings)
        self.quota = quota(limit, clock)
        self.quota.throttle("t", ["0:1"], 1)
        self.fetchers = ReplicaFetchers(self.settings, self.leader.connect, clock, quota=self.quota)


async def test_the_follower_leaves_out_what_is_above_the_rate() -> None:
    clock = ManualClock()
    bench = Limited(3 * RECORD.size, clock, max_bytes=RECORD.size)
    for index in (0, 1):
        bench.append(index, 50)
        bench.leader.logs[index].update_high_watermark(50)
    bench.follow()
    try:
        await bench.until(lambda: bench.logs[1].log_end_offset == 50)
        assert 1 <= bench.logs[0].log_end_offset <= 4
        before = bench.logs[0].log_end_offset
        assert bench.quota.exceeded
        clock.advance(4000)
        await bench.until(lambda: bench.logs[0].log_end_offset > before)
        assert bench.logs[0].log_end_offset < 50
        bench.quota.limit = None
        clock.advance(1000)
        await bench.alike()
    finally:
        bench.fetchers.close()


async def test_alone_it_rests_while_it_is_held_back() -> None:
    clock = ManualClock()
    bench = Limited(0, clock, count=1, max_bytes=RECORD.size)
    bench.append(0, 5)
    bench.leader.logs[0].update_high_watermark(5)
    bench.follow()
    try:
        await bench.until(lambda: bench.logs[0].log_end_offset > 0 and len(bench.leader.sessions) == 0)
        asked = len(bench.leader.asked)
        await asyncio.sleep(0.02)  # it has a pause of 50 ms
        assert len(bench.leader.asked) == asked
        bench.quota.limit = None
        await bench.alike()  # after the pause, with nobody waking it
    finally:
        bench.fetchers.close()


async def test_a_replica_in_sync_is_not_held_back() -> None:
    clock = ManualClock()
    bench = Limited(0, clock, count=1)
    bench.append(0, 5)
    bench.follow()
    try:
        await bench.alike()
        bench.append(0, 5)
        await bench.alike()
        assert bench.quota.exceeded
    finally:
        bench.fetchers.close()


# --- more and fewer fetchers


async def test_partitions_go_over_to_other_fetchers() -> None:
    bench = Fetching(8)
    bench.follow()
    for index in range(8):
        bench.append(index)
    await bench.alike()
    for count in (4, 2, 3, 1):
        bench.fetchers.resize(count)
        for index in range(8):
            bench.append(index)
        await bench.alike()
        numbers = {number for _, number in bench.fetchers._fetchers}
        assert numbers == set(range(count))
        assert sum(len(fetcher) for fetcher in bench.fetchers._fetchers.values()) == 8
    bench.fetchers.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("fetcher")]
