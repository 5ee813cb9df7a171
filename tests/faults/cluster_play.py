"""Rounds of faults, one after the other, and what is looked at after each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from tests.faults.cluster_checks import check_everything
from tests.faults.cluster_faults import FAULTS, Deck, Scene
from tests.faults.cluster_rounds import Answer, Cluster
from tests.faults.cluster_traffic import At, Traffic


def play(
    cluster: Cluster,
    traffic: Traffic,
    dealer: random.Random,
    rounds: int,
    faults_a_round: int,
    check_also: Callable[[], None] = lambda: None,
    deck: Deck | None = None,
) -> None:
    """Each round deals faults under load (from a new deck if there is none yet), heals the cluster, holds the producers
    and checks everything, last by `check_also`."""
    deck = deck or Deck(dealer)
    for number in range(rounds):
        began = time.monotonic()
        traffic.produce()
        for name in deck.deal(faults_a_round):
            traffic.wait_for_progress()
            print(f"round {number} {time.monotonic() - began:6.1f} {name}", flush=True)
            FAULTS[name](Scene(cluster, traffic, dealer))
        cluster.heal()
        cluster.wait_until_settled()
        traffic.wait_for_progress()
        traffic.hold()
        print(f"round {number} {time.monotonic() - began:6.1f} checks", flush=True)
        start_at(cluster, traffic.starts)  # starts are checkpointed now and then: a kill takes some replicas back
        ends = check_everything(cluster, traffic)
        check_also()
        delete_records(cluster, traffic, ends, dealer)
        print(f"round {number} {time.monotonic() - began:6.1f} done, {sum(ends.values())} records", flush=True)


def delete_records(cluster: Cluster, traffic: Traffic, ends: dict[At, int], dealer: random.Random) -> None:
    """Up to somewhere, of half of the partitions: logs stay short, and start where no batch does."""
    chosen = {at: dealer.randrange(end + 1) for at, end in ends.items() if dealer.random() < 0.5}
    start_at(cluster, chosen)
    traffic.forget_below(chosen.items())


def start_at(cluster: Cluster, starts: Mapping[At, int]) -> None:
    """Asks the leaders to delete what lies below, and waits until all replicas have."""
    states = cluster.partitions()
    for broker_id in cluster.nodes:
        topics: dict[str, list[Answer]] = {}
        for (topic, index), offset in starts.items():
            if states[topic, index][0] == broker_id:
                topics.setdefault(topic, []).append({"PartitionIndex": index, "Offset": offset})
        asked = [{"Name": topic, "Partitions": partitions} for topic, partitions in topics.items()]
        with cluster.client(broker_id, 60) as client:
            answer = client.call("DeleteRecords", 1, {"Topics": asked, "TimeoutMs": 30000})
        codes = {each["ErrorCode"] for topic in answer["Topics"] for each in topic["Partitions"]}
        assert codes <= {0, 6, 1}, answer  # a preferred election may come in between; an earlier start is further on
