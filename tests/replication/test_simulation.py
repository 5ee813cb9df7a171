"""Replication under a few hundred random schedules: crashes, lost and late messages, sessions that expire unnoticed,
leadership that moves there and back. Bugs that are planted are found.

A schedule that fails names its seed; SIMULATION_SEED=n replays just that one, SIMULATION_SEEDS=n runs so many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from pybroker.replication.fetch import Ask, PartitionReader
from pybroker.replication.leader import LeaderState
from pybroker.replication.partition import Partition
from tests.replication.cluster_model import BROKERS, Broker, Cluster

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "300"))
STEPS = 60
BATCHES = 10


def disturb(cluster: Cluster) -> None:
    """Something happens: mostly records, now and then a misfortune."""
    random, network = cluster.random, cluster.network
    broker = cluster.brokers[random.choice(BROKERS)]
    if random.random() < cluster.restless:
        before = cluster.leader
        cluster.move_leader()
        if random.random() < 0.5:  # and back, before everybody has heard of it
            network.later(random.randint(1, 60), lambda: cluster.move_leader(before))
        return
    what = random.random()
    if what < 0.75:
        for leader in cluster.brokers.values():  # a deposed one may not know yet, nor its clients
            if leader.alive and leader.partition.leader is not None:
                cluster.values += 1
                leader.produce(cluster.values)
    elif what < 0.83:
        broker.checkpoint = broker.log.high_watermark
    elif what < 0.89 and broker.alive:
        broker.crash()
        life = broker.life
        network.later(random.randint(1, 60), lambda: cluster.expire(broker.id) if broker.life == life else None)
        network.later(random.randint(61, 300), lambda: _return(cluster, broker.id, life))
    elif what < 0.95 and broker.alive:  # it stalls past its session, or ZooKeeper thinks so
        life = broker.life
        cluster.expire(broker.id)
        back = random.randint(10, 200)
        network.later(back, lambda: cluster.register(broker.id) if broker.current(life) else None)
    else:
        log = broker.log
        if broker.alive and broker.partition.leader is not None and random.random() < 0.5:
            log.maybe_increment_log_start_offset(random.randint(log.log_start_offset, log.high_watermark))


def _return(cluster: Cluster, broker_id: int, life: int) -> None:
    broker = cluster.brokers[broker_id]
    if not broker.alive and broker.life == life:
        cluster.expire(broker_id)
        broker.start()
        cluster.register(broker_id)


def heal(cluster: Cluster) -> None:
    """Nothing is lost any more, everybody comes back: the replicas must become one."""
    cluster.network.loss = 0.0
    for broker in cluster.brokers.values():
        if not broker.alive:
            cluster.expire(broker.id)
            broker.start()
        if broker.id not in cluster.registered:
            cluster.register(broker.id)
    until = cluster.clock.monotonic_ms() + 5000
    while cluster.clock.monotonic_ms() < until and not united(cluster):
        assert cluster.network.step()


def united(cluster: Cluster) -> bool:
    logs = [broker.log for broker in cluster.brokers.values()]
    return (
        cluster.leader >= 0
        and sorted(cluster.isr) == list(BROKERS)
        and len({log.log_end_offset for log in logs}) == 1
        and all(log.high_watermark == log.log_end_offset for log in logs)
    )


def run(seed: int) -> Cluster:
    cluster = Cluster(seed)
    for _ in range(STEPS):
        for _ in range(cluster.random.randint(1, 15)):
            cluster.network.step()
        disturb(cluster)
        cluster.check()
    heal(cluster)
    cluster.check()
    assert united(cluster), "the replicas do not become one"
    start = max(broker.log.log_start_offset for broker in cluster.brokers.values())
    for broker in cluster.brokers.values():
        assert broker.log.records[start - broker.log.log_start_offset :] == cluster.committed[start:]
    assert all(cluster.committed[at][1] == value for at, value in cluster.acknowledged.items())
    return cluster


@pytest.mark.parametrize("batch", range(BATCHES))
def test_nothing_acknowledged_is_lost(batch: int) -> None:
    seeds = range(batch, SEEDS, BATCHES)
    if "SIMULATION_SEED" in os.environ:
        seeds = range(int(os.environ["SIMULATION_SEED"]), int(os.environ["SIMULATION_SEED"]) + 1)
    acknowledged = 0
    for seed in seeds:
        try:
            acknowledged += len(run(seed).acknowledged)
        except BaseException as error:
            error.add_note(f"replay with SIMULATION_SEED={seed}")
            raise
    assert acknowledged > len(seeds)


def test_a_seed_replays() -> None:
    first, second = run(7), run(7)
    assert first.committed == second.committed
    assert first.clock.monotonic_ms() == second.clock.monotonic_ms()


def _no_epoch_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "check_epoch", lambda partition, epoch: None)


def _watermark_without_what_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    def propose(leader: LeaderState, isr: Iterable[int]) -> None:
        leader.in_flight = frozenset(isr)
        leader.maximal_isr = leader.isr & leader.in_flight
        leader._hold()

    patch.setattr(LeaderState, "propose_isr", propose)


def _anybody_joins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderState, "may_join_isr", lambda leader, replica, mark, now_ms: replica not in leader.maximal_isr)


def _nothing_is_cut(patch: pytest.MonkeyPatch) -> None:
    read = PartitionReader.read

    def careless(reader: PartitionReader, asks: list[Ask], *rest: Any) -> Any:
        for ask in asks:
            ask.last_fetched_epoch = -1
        return read(reader, asks, *rest)

    patch.setattr(PartitionReader, "read", careless)


@pytest.mark.parametrize(
    "plant", [_no_epoch_check, _watermark_without_what_is_asked_for, _anybody_joins, _nothing_is_cut]
)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(1000):
            run(seed)


def test_two_leaders_of_one_epoch_are_found() -> None:
    cluster = Cluster(1)
    one, two = cluster.brokers[1], cluster.brokers[2]
    _lead(one)
    one.produce(1)
    two.log.records, two.log.high_watermark = list(one.log.records), 1
    cluster.check()
    _lead(two)
    with pytest.raises(AssertionError, match="two leaders moved the watermark in epoch 1"):
        two.produce(2)


def _lead(broker: Broker) -> None:
    """Alone in the ISR, in epoch 1."""
    alone = LeaderAndIsrPartitionState(leader=broker.id, leader_epoch=1, isr=[broker.id], replicas=list(BROKERS))
    broker.cluster.isr = (broker.id,)
    broker.partition.make_leader(alone, 0)
