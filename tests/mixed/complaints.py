"""What four Apache Kafkas complain of in their logs when they are hurt: tests/data/mixed/complaints.txt.

`python -m tests.mixed.complaints FOLDER [--runs 5] [--rounds 17] [--seed 1]` plays the rounds of test_rounds.py with
four real Kafkas, each time from the start, and adds the kinds of warnings and errors that it has not seen before. What
takes two things at a time, a kill amid moves for instance, is rare: `--faults NAME...` plays no others.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from tests.faults.cluster_faults import FAULTS, Deck
from tests.faults.cluster_play import play
from tests.mixed.kafka_node import KafkaNode
from tests.mixed.rounds import scenario, verify_replicas
from tests.support.broker import ROOT
from tests.support.cluster import KAFKA

FILE = ROOT / "tests" / "data" / "mixed" / "complaints.txt"


def known_complaints() -> set[str]:
    """Those recorded."""
    return set(FILE.read_text().splitlines())


def record(folder: Path, rounds: int, dealer: random.Random, deck: Deck) -> set[str]:
    """One run; kinds of what was complained of."""
    with scenario(folder, dict.fromkeys((1, 2, 3, 4), KAFKA)) as traffic:
        cluster = traffic.cluster
        play(cluster, traffic, dealer, rounds, 1, lambda: verify_replicas(cluster), deck)
        return {kind for node in cluster.nodes.values() if isinstance(node, KafkaNode) for kind in node.complaints()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=17)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    options = parser.parse_args()
    dealer = random.Random(options.seed)
    deck = Deck(dealer, options.faults)  # of all runs, so that short ones see every fault too
    for run in range(options.runs):
        known = known_complaints() if FILE.exists() else set()
        found = record(options.folder / f"run{run}", options.rounds, dealer, deck)
        print(f"run {run}: {len(found)} kinds, {len(found - known)} of them new", flush=True)
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text("".join(f"{kind}\n" for kind in sorted(known | found)))


if __name__ == "__main__":
    main()
