"""Replication under a few hundred random schedules: crashes, lost and late messages, sessions that expire unnoticed.

A schedule that fails names its seed; SIMULATION_SEED=n replays just that one, SIMULATION_SEEDS=n runs so many.
"""

from __future__ import annotations

import os

import pytest

from tests.replication.cluster_model import BROKERS, Cluster

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "300"))
STEPS = 60
BATCHES = 10


def disturb(cluster: Cluster) -> None:
    """Something happens: mostly records, now and then a misfortune."""
    random, network = cluster.random, cluster.network
    broker = cluster.brokers[random.choice(BROKERS)]
    what = random.random()
    if what < 0.70:
        for leader in cluster.brokers.values():  # a deposed one may not know yet, nor its clients
            if leader.alive and leader.partition.leader is not None:
                cluster.values += 1
                leader.produce(cluster.values)
    elif what < 0.78:
        broker.checkpoint = broker.log.high_watermark
    elif what < 0.84 and broker.alive:
        broker.crash()
        life = broker.life
        network.later(random.randint(1, 60), lambda: cluster.expire(broker.id) if broker.life == life else None)
        network.later(random.randint(61, 300), lambda: _return(cluster, broker.id, life))
    elif what < 0.90 and broker.alive:  # it stalls past its session, or ZooKeeper thinks so
        life = broker.life
        cluster.expire(broker.id)
        back = random.randint(10, 200)
        network.later(back, lambda: cluster.register(broker.id) if broker.current(life) else None)
    elif what < 0.95:
        cluster.move_leader()
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
