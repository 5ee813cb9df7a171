#!/usr/bin/env python3
"""Runs pybroker, Apache Kafka 3.9.2 and the floor in turn under the same loads and prints a table with ratios.

    python bench/compare.py            all measures, under 15 minutes
    python bench/compare.py --quick    a tenth of the volume
    python bench/compare.py --only produce-1k ping
    python bench/compare.py --write    and put the table into bench/RESULTS.md

Every system starts on an empty folder, gets one pass of traffic that is not measured (a JVM compiles what it runs
often), and then the measures one after the other. Loads and broker share the machine's cores. CPU figures are user and
system time of the broker's process tree; those of clients and of ZooKeeper are in none of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from confluent_kafka import KafkaException

from bench import clients, groups, logs, rawload, report, wire
from bench.processes import Figures, PageCache, cpu_seconds, measured, memory_mb
from bench.rawload import Result, Target
from bench.systems import SYSTEMS, System

STARTS = {"pybroker": 7, "kafka": 3, "floor": 7}
SETTLED_SECONDS = 2
MANY = 1_000
VERY_MANY = 10_000
MEASURES = (
    "start", "memory", "compaction", *rawload.MEASURES, *clients.MEASURES, *groups.MEASURES, *logs.MEASURES,
    "10000-partitions",
)  # fmt: skip
# Each begins with a start of its own.
ALONE = {"start", "memory", "compaction"}


def starts(system: System) -> Iterator[Result]:
    """Process start to first answer on an empty folder; the median of a few, the first thrown away."""
    times, cpu = [], []
    for _ in range(STARTS[system.name] + 1):
        system.start()
        assert system.process is not None
        times.append(system.start_seconds)
        cpu.append(cpu_seconds([system.process.pid]))
        system.stop()
    yield "start", {"ms": statistics.median(times[1:]) * 1e3, "cpu_s": statistics.median(cpu[1:])}


@contextmanager
def connections(system: System, count: int) -> Iterator[None]:
    """So many connections, each of which has asked for ApiVersions and is idle since."""
    sockets = []
    try:
        for _ in range(count):
            sockets.append(socket.create_connection(system.address, timeout=60))
            sockets[-1].sendall(wire.api_versions())
        for each in sockets:
            each.recv(4096)
        yield
    finally:
        for each in sockets:
            each.close()


def memory(system: System) -> Iterator[Result]:
    """Memory of a broker that has just started: idle, then with connections, then with partitions."""
    system.start()
    target = system.target(0)
    time.sleep(SETTLED_SECONDS)
    figures: Figures = {"idle_mb": memory_mb(target.pids)}
    if system.name != "floor":
        with connections(system, MANY):
            time.sleep(SETTLED_SECONDS)
            figures["connections_mb"] = memory_mb(target.pids)
        time.sleep(SETTLED_SECONDS)
        clients.create_topic(target, "many", MANY)
        time.sleep(SETTLED_SECONDS)
        figures["partitions_mb"] = memory_mb(target.pids)
    figures["cpu_s"] = cpu_seconds(target.pids)
    yield "memory", figures
    system.stop()


def very_many_partitions(target: Target) -> Iterator[Result]:
    with measured(target.pids) as figures:
        clients.create_topic(target, "very-many", VERY_MANY)
    yield "create-10000-partitions", figures
    yield from rawload.ping_beside_metadata(target, "very-many")


def loads(system: System, wanted: list[str], gigabytes: float, cache: PageCache) -> Iterator[Result]:
    """Everything that runs on one warm broker."""
    system.start()
    target = system.target(gigabytes)
    if system.name == "floor":
        rawload.warm_up(target)
        for name in rawload.OF_THE_FLOOR:
            if name in wanted:
                yield from attempted(name, rawload.MEASURES[name](target), cache)
    else:
        clients.create_topic(target, target.topic, 8)
        rawload.warm_up(target)
        clients.warm_up(target)
        for name, measure in (rawload.MEASURES | clients.MEASURES | groups.MEASURES | logs.MEASURES).items():
            if name in wanted:
                yield from attempted(name, measure(target), cache)
        if "10000-partitions" in wanted:
            yield from attempted("10000-partitions", very_many_partitions(target), cache)
    system.stop()


def attempted(name: str, results: Iterator[Result], cache: PageCache) -> Iterator[Result]:
    """The results; a measure that fails is told on stderr and has an empty cell in the table."""
    cache.fill()
    try:
        yield from results
    except (RuntimeError, OSError, EOFError, KafkaException) as error:
        print(f"{name} failed: {error}", file=sys.stderr, flush=True)


def run(system: System, wanted: list[str], gigabytes: float, cache: PageCache) -> Iterator[Result]:
    try:
        if "start" in wanted:
            yield from starts(system)
        if "memory" in wanted:
            yield from memory(system)
        if "compaction" in wanted and system.name != "floor":
            yield from attempted("compaction", logs.compaction(system, gigabytes), cache)
            system.stop()
        if set(wanted) - ALONE:
            yield from loads(system, wanted, gigabytes, cache)
    finally:
        system.stop()


def medians(rounds: list[dict[str, Figures]]) -> dict[str, Figures]:
    """Each figure's median over the rounds that have it."""
    found = {}
    for measure in dict.fromkeys(name for each in rounds for name in each):
        runs = [each[measure] for each in rounds if measure in each]
        found[measure] = {key: statistics.median(figures[key] for figures in runs) for key in runs[0]}
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=MEASURES, default=list(MEASURES),
                        help=f"some of: {', '.join(MEASURES)}")  # fmt: skip
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), help="some of the three")
    parser.add_argument("--quick", action="store_true", help="a tenth of the volume")
    parser.add_argument("--gb", type=float, help="gigabytes of each large load (1, with --quick 0.1)")
    parser.add_argument("--rounds", type=int, default=1, help="repeat all in turn and take the medians")
    parser.add_argument("--dir", type=Path, help="where the brokers keep their data (a folder below the cache folder)")
    parser.add_argument("--write", action="store_true", help="write the table to bench/RESULTS.md")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pybroker-bench"
    parent: Path = options.dir or cache
    parent.mkdir(parents=True, exist_ok=True)
    gigabytes = options.gb or (0.1 if options.quick else 1.0)
    began, load = time.monotonic(), os.getloadavg()[0]
    rounds: dict[str, list[dict[str, Figures]]] = {name: [] for name in options.systems}
    work = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    page_cache = PageCache(work)
    try:
        for _ in range(options.rounds):
            for name in options.systems:
                results: dict[str, Figures] = {}
                rounds[name].append(results)
                for measure, figures in run(SYSTEMS[name](work), options.only, gigabytes, page_cache):
                    results[measure] = figures
                    shown = {key: round(value, 3) for key, value in figures.items()}
                    print(f"{name} {measure} {json.dumps(shown)}", file=sys.stderr, flush=True)
        found = {name: medians(rounds[name]) if name in rounds else {} for name in SYSTEMS}
        text = report.table(found["pybroker"], found["kafka"], found["floor"])
        head = report.heading(
            "python " + shlex.join(["bench/compare.py", *sys.argv[1:]]), work,
            with_kafka="kafka" in rounds, rounds=options.rounds, seconds=time.monotonic() - began, load=load,
        )  # fmt: skip
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{head}\n{text}")
    if options.write:
        report.write_section("One broker", f"{head}\n{text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
