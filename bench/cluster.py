#!/usr/bin/env python3
"""Runs three pybroker under a ZooKeeper, then three Apache Kafka 3.9.2, under the same loads; prints a table.

    python bench/cluster.py            all measures, under 12 minutes
    python bench/cluster.py --quick    less of everything, under 4 minutes
    python bench/cluster.py --only produce ping
    python bench/cluster.py --write    and put the table into bench/RESULTS.md

Topics have three replicas. Each kind starts on empty folders and is warm before it is measured. CPU figures are of all
brokers, without ZooKeeper and clients.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench import report, wire
from bench.processes import Figures, PageCache, cpu_seconds, measured, percentiles
from bench.rawload import BIG, ONE, Result, pump
from bench.trio import PATIENCE_SECONDS, Topics, Trio
from bench.wire import Connection

KINDS = ("pybroker", "kafka")
LEADER, SECOND, FOLLOWER = 1, 2, 3
ORDER = [LEADER, SECOND, FOLLOWER]  # replicas of the topics of measures, so that one broker leads them


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    gigabytes: float = 1.0
    pings: int = 5_000
    topics: int = 1_000  # of two partitions
    failovers: int = 3

    def batches(self, share: float = 1.0) -> int:
        return max(20, int(self.gigabytes * share * 1e9) // len(BIG))


FULL, QUICK = Size(), Size(gigabytes=0.25, pings=2_000, topics=500, failovers=1)


def produce(trio: Trio, size: Size) -> Iterator[Result]:
    """64 KiB batches of 64 records of 1 KB to one partition, five requests in flight."""
    trio.create({"produce": [ORDER]})
    trio.wait_for_isr("produce", set(ORDER), LEADER)
    address, count = trio.brokers[LEADER].address, size.batches()
    pump(address, "produce", 0, BIG, -1, size.batches(0.25))
    with measured(trio.pids) as figures:
        pump(address, "produce", 0, BIG, -1, count)
        figures["bytes"] = count * len(BIG)
    yield "produce", figures


def ping(trio: Trio, size: Size) -> Iterator[Result]:
    """One-record produces, one after the other."""
    trio.create({"ping": [ORDER]})
    trio.wait_for_isr("ping", set(ORDER), LEADER)
    connection, frame = Connection(trio.brokers[LEADER].address), wire.produce("ping", 0, ONE, -1)
    times = []
    with measured(trio.pids) as figures:
        for _ in range(size.pings):
            began = time.perf_counter()
            wire.base_offset(connection.ask(frame), "ping")
            times.append(time.perf_counter() - began)
        figures |= percentiles(times)
        figures["n"] = size.pings
    connection.close()
    yield "ping", figures


def follower(trio: Trio, size: Size) -> Iterator[Result]:
    """A follower is stopped in an orderly way, misses a gigabyte, and starts again."""
    trio.create({"missed": [ORDER]})
    broker, address, count = trio.brokers[FOLLOWER], trio.brokers[LEADER].address, size.batches()
    broker.end(signal.SIGTERM)
    trio.wait_for_isr("missed", {LEADER, SECOND}, LEADER)
    pump(address, "missed", 0, BIG, -1, count)
    cpu = cpu_seconds(trio.pids)
    with trio.registration(FOLLOWER, True) as registered:
        began = time.perf_counter()
        broker.spawn()
        if not registered.wait(PATIENCE_SECONDS):
            raise RuntimeError("the follower did not register")
        known = time.perf_counter()
        trio.wait_for_isr("missed", set(ORDER), LEADER)
        ended = time.perf_counter()
    yield "follower", {
        "s": ended - began,
        "registered_s": ended - known,
        "MB/s": count * len(BIG) / (ended - known) / 1e6,
        "cpu_s": cpu_seconds(trio.pids) - cpu,
    }


def many_topics(size: Size) -> Topics:
    return {f"many-{number}": 2 for number in range(size.topics)}


def topics(trio: Trio, size: Size) -> Iterator[Result]:
    """All in one request to the controller; the broker chooses the replicas."""
    with measured(trio.pids) as figures:
        trio.create(many_topics(size))
    yield "topics", figures


def failover(trio: Trio, size: Size) -> Iterator[Result]:
    """kill -9 of the controller, which leads a third of the partitions; the median of a few."""
    many = many_topics(size)
    if ("many-0", 0) not in trio.running()[0].metadata().partitions:
        trio.create(many)
    seconds, cpu = [], []
    for _ in range(size.failovers):
        trio.elect_preferred()
        broker = trio.brokers[trio.controller()]
        with trio.registration(broker.broker_id, False) as gone:
            broker.end(signal.SIGKILL)
            used = cpu_seconds(trio.pids)
            if not gone.wait(PATIENCE_SECONDS):
                raise RuntimeError("the session of a killed broker did not end")
            began = time.perf_counter()
            trio.wait_until_led(many)
        seconds.append(time.perf_counter() - began)
        cpu.append(cpu_seconds(trio.pids) - used)
        broker.spawn()
    yield "failover", {"s": statistics.median(seconds), "cpu_s": statistics.median(cpu), "most_s": max(seconds)}


MEASURES: dict[str, Callable[[Trio, Size], Iterator[Result]]] = {
    "produce": produce,
    "ping": ping,
    "follower": follower,
    "topics": topics,
    "failover": failover,
}


def warm_up(trio: Trio, size: Size) -> None:
    """A pass of the same traffic on a topic of its own: a JVM needs it to be at its best."""
    trio.create({"warm": [ORDER, ORDER]})
    address = trio.brokers[LEADER].address
    pump(address, "warm", 0, BIG, -1, size.batches(0.5))
    pump(address, "warm", 1, ONE, -1, 4 * size.pings)


def run(kind: str, work: Path, wanted: list[str], size: Size) -> Iterator[Result]:
    """The measures on one kind; one that fails is told on stderr and has an empty cell in the table."""
    trio, cache = Trio(kind, work), PageCache(work)
    try:
        trio.start()
        if {"produce", "ping", "follower"} & set(wanted):
            warm_up(trio, size)
        for name in wanted:
            cache.fill()
            try:
                yield from MEASURES[name](trio, size)
            except (RuntimeError, OSError, EOFError) as error:
                print(f"{kind} {name} failed: {error}", file=sys.stderr, flush=True)
    finally:
        trio.stop()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=MEASURES, default=list(MEASURES),
                        help=f"some of: {', '.join(MEASURES)}")  # fmt: skip
    parser.add_argument("--systems", nargs="+", choices=KINDS, default=list(KINDS), help="one of the two")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--dir", type=Path, help="where the brokers keep their data (a folder below the cache folder)")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing it started stays behind
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pybroker-bench"
    parent: Path = options.dir or cache
    parent.mkdir(parents=True, exist_ok=True)
    size = QUICK if options.quick else FULL
    began, load = time.monotonic(), os.getloadavg()[0]
    work = Path(tempfile.mkdtemp(prefix="cluster-", dir=parent))
    found: dict[str, dict[str, Figures]] = {kind: {} for kind in KINDS}
    try:
        for kind in options.systems:
            for measure, figures in run(kind, work, options.only, size):
                found[kind][measure] = figures
                shown = {key: round(value, 3) for key, value in figures.items()}
                print(f"{kind} {measure} {json.dumps(shown)}", file=sys.stderr, flush=True)
        head = report.heading(
            "python " + shlex.join(["bench/cluster.py", *sys.argv[1:]]), work,
            with_kafka="kafka" in options.systems, rounds=1, seconds=time.monotonic() - began, load=load,
        )  # fmt: skip
    finally:
        shutil.rmtree(work, ignore_errors=True)
    text = report.table(found["pybroker"], found["kafka"], {}, report.CLUSTER_ROWS)
    print(f"{head}\n{text}")
    if options.write:
        report.write_section("A cluster of three", f"{head}\n{text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
