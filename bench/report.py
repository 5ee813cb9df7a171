"""The table: which figures are shown, in which order, and what each is meant to be."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from bench import kafka
from bench.processes import Figures

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("RESULTS.md")
Results = Mapping[str, Figures]


class Row(NamedTuple):
    """A figure of a measure. A target is met when the value reaches `of_kafka` times Kafka's, `of_floor` times the
    floor's, and `limit`, as far as each is given: at least for what should be high, at most for what should be low."""

    measure: str
    figure: str
    label: str
    high: bool = False
    of_kafka: float | None = None
    of_floor: float | None = None
    limit: float | None = None


CPU_EACH = "&nbsp;&nbsp;CPU, µs each"
CPU_GB = "&nbsp;&nbsp;CPU, s per GB"
CPU_S = "&nbsp;&nbsp;CPU, s"

ROWS = (
    Row("produce-1k", "MB/s", "64 KiB batches of 1 KB records, acks=1, MB/s", True, 2, 0.6),
    Row("produce-1k", "cpu_s_per_GB", CPU_GB, False, 0.4, 1.6),
    Row("produce-1k-all", "MB/s", "the same, acks=all, one replica, MB/s", True, 1.5, 0.6),
    Row("produce-1k-all", "cpu_s_per_GB", CPU_GB),
    Row("produce-100b", "MB/s", "16 KiB batches of 100 B records, acks=1, MB/s", True, 1.5, 0.6),
    Row("produce-100b", "cpu_s_per_GB", CPU_GB, False, 0.5, 1.6),
    Row("fetch-1st", "MB/s", "fetching 1 MiB at a time, MB/s", True, 1),
    Row("fetch-1st", "cpu_s_per_GB", CPU_GB, False, 1),
    Row("fetch-2nd", "MB/s", "the same again, MB/s", True, 1),
    Row("fetch-2nd", "cpu_s_per_GB", CPU_GB, False, 1),
    Row("requests", "per_s", "one-record produces, 4 connections x 5 in flight, per s", True, 1.8, 0.45),
    Row("requests", "cpu_us_each", CPU_EACH, False, 0.4, 2.5),
    Row("append-2000", "per_s", "one-record produces to 2,000 partitions in turn, per s", True),
    Row("append-2000", "cpu_us_each", CPU_EACH),
    Row("compaction", "MB/s", "compaction, one cleaner, 500 B records, two to a key, MB/s", True),
    Row("compaction", "records_per_s", "&nbsp;&nbsp;records per s", True),
    Row("compaction", "cpu_s_per_GB", CPU_GB),
    Row("compaction", "most_mb", "&nbsp;&nbsp;memory of the broker and its cleaner, at most, MB"),
    Row("metadata", "per_s", "Metadata of one topic, per s", True, 1.5),
    Row("metadata", "cpu_us_each", CPU_EACH, False, 0.5),
    Row("ping", "p50_us", "one-record produce, one after the other, p50 µs", False, 1, 1.5),
    Row("ping", "p99_us", "&nbsp;&nbsp;p99 µs", False, 1),
    Row("ping", "cpu_us_each", CPU_EACH),
    Row("ping-beside-load", "p50_us", "the same beside a 60 MB/s producer, p50 µs", False, 1),
    Row("ping-beside-load", "p99_us", "&nbsp;&nbsp;p99 µs", False, 1),
    Row("ping-beside-load", "cpu_s", CPU_S),
    Row("ping-beside-cold-read", "p50_us", "the same beside a 1 GB partition read cold, p50 µs", False, 1),
    Row("ping-beside-cold-read", "p99_us", "&nbsp;&nbsp;p99 µs", False, 1),
    Row("ping-beside-cold-read", "read_MB/s", "&nbsp;&nbsp;the cold read, MB/s", True),
    Row("ping-beside-cold-read", "cpu_s", CPU_S),
    Row(
        "ping-beside-metadata", "p50_us", "the same beside metadata of 10,000 partitions, 20 a second, p50 µs", False, 1
    ),
    Row("ping-beside-metadata", "p99_us", "&nbsp;&nbsp;p99 µs", False, 1),
    Row("ping-beside-metadata", "cpu_s", CPU_S),
    Row("metadata-10000-partitions", "per_s", "metadata of 10,000 partitions, per s", True),
    Row("metadata-10000-partitions", "cpu_us_each", CPU_EACH),
    Row("create-10000-partitions", "s", "creating 10,000 partitions, s"),
    Row("create-10000-partitions", "cpu_s", CPU_S),
    Row("produce-latency", "p50_us", "one-record produce at 500/s, p50 µs"),
    Row("produce-latency", "p99_us", "&nbsp;&nbsp;p99 µs"),
    Row("produce-latency", "p999_us", "&nbsp;&nbsp;p99.9 µs"),
    Row("produce-latency", "cpu_s", CPU_S),
    Row("end-to-end", "p50_us", "produce → consume at 500/s, p50 µs"),
    Row("end-to-end", "p99_us", "&nbsp;&nbsp;p99 µs"),
    Row("end-to-end", "p999_us", "&nbsp;&nbsp;p99.9 µs"),
    Row("end-to-end", "cpu_s", CPU_S),
    Row("seed-acks-0", "per_s", "confluent-kafka, 100,000 x 1 KB, acks=0, per s", True, None, None, 83_333),
    Row("seed-acks-0", "cpu_s", CPU_S),
    Row("seed-acks-1", "per_s", "the same, acks=1, per s", True, None, None, 40_000),
    Row("seed-acks-1", "cpu_s", CPU_S),
    Row("seed-acks-all", "per_s", "the same, acks=all, per s", True, None, None, 20_833),
    Row("seed-acks-all", "cpu_s", CPU_S),
    Row("client-produce-1k", "per_s", "confluent-kafka, 1 KB records in, acks=all, per s", True),
    Row("client-produce-1k", "cpu_s", CPU_S),
    Row("client-consume-1k", "per_s", "the same out, per s", True),
    Row("client-consume-1k", "cpu_s", CPU_S),
    Row("client-produce-100b", "per_s", "confluent-kafka, 100 B records in, acks=all, per s", True),
    Row("client-produce-100b", "cpu_s", CPU_S),
    Row("client-consume-100b", "per_s", "the same out, per s", True),
    Row("client-consume-100b", "cpu_s", CPU_S),
    Row("group-joins", "per_s", "members that join (JoinGroup twice, SyncGroup), per s", True),
    Row("group-joins", "cpu_us_each", CPU_EACH),
    Row("group-heartbeats", "per_s", "heartbeats, 4 connections x 25 in flight, per s", True),
    Row("group-heartbeats", "cpu_us_each", CPU_EACH),
    Row("group-commits", "per_s", "commits of one offset, 4 connections x 25 in flight, per s", True),
    Row("group-commits", "cpu_us_each", CPU_EACH),
    Row("group-rebalance", "ms", "rebalance of 100 members, ms"),
    Row("group-rebalance", "cpu_s", CPU_S),
    Row("group-many-joins", "per_s", "members of 10,000 groups of 3 join, per s", True),
    Row("group-many-joins", "cpu_us_each", CPU_EACH),
    Row("group-many-beats", "cpu_us_each", "their heartbeats, every 3 s, CPU, µs each", False, 0.25),
    Row("group-many-beats", "cpu_share", "&nbsp;&nbsp;CPU, % of a core"),
    Row("group-first-record-classic", "ms", "confluent-kafka, subscribe → first record of a new group, ms", False, None,
        None, 300),
    Row("group-first-record-classic", "cpu_s", CPU_S),
    Row("group-first-record-consumer", "ms", "the same with the consumer protocol, ms", False, None, None, 1000),
    Row("group-first-record-consumer", "cpu_s", CPU_S),
    Row("group-leave", "ms", "one of two members leaves, heartbeats every 0.5 s, ms", False, None, None, 600),
    Row("group-leave", "cpu_s", CPU_S),
    Row("idle-conns", "s", "900 connections at once, s", False, 0.1),
    Row("idle-conns", "kb_each", "&nbsp;&nbsp;memory, KB each", False, None, None, 20),
    Row("idle-conns", "cpu_us_each", CPU_EACH),
    Row("start", "ms", "process start to first answer, ms", False, None, None, 150),
    Row("start", "cpu_s", CPU_S),
    Row("memory", "idle_mb", "memory, idle, MB", False, None, None, 60),
    Row("memory", "connections_mb", "&nbsp;&nbsp;with 1,000 connections, MB"),
    Row("memory", "partitions_mb", "&nbsp;&nbsp;with 1,000 partitions, MB"),
    Row("memory", "cpu_s", CPU_S),
)

CLUSTER_ROWS = (
    Row("produce", "MB/s", "64 KiB batches of 1 KB records, acks=all, one partition, MB/s", True, 3),
    Row("produce", "cpu_s_per_GB", CPU_GB, False, 0.33),
    Row("ping", "p50_us", "one-record produce, acks=all, one after the other, p50 µs", False, 1),
    Row("ping", "p99_us", "&nbsp;&nbsp;p99 µs", False, 1),
    Row("ping", "cpu_us_each", CPU_EACH),
    Row("follower", "s", "a follower that missed 1 GB: start of its process → in sync, s", False, 1),
    Row("follower", "registered_s", "&nbsp;&nbsp;registered → in sync, s", False, 1),
    Row("follower", "cpu_s", CPU_S),
    Row("topics", "s", "1,000 topics of 2 partitions in one request → led on all brokers, s", False, 0.5),
    Row("topics", "cpu_s", CPU_S),
    Row("failover", "s", "2,000 partitions, the controller killed: its session's end → all led, s", False, 0.33),
    Row("failover", "cpu_s", CPU_S),
)


def number(value: float | None) -> str:
    """Three digits that count, with thousands separated."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2f}"


def verdict(row: Row, own: float, of_kafka: float | None, of_floor: float | None) -> str:
    """What is wanted, and whether the value is there."""
    wants, met = [], True
    sign = "≥" if row.high else "≤"
    for factor, other, name in ((row.of_kafka, of_kafka, "Kafka"), (row.of_floor, of_floor, "floor")):
        if factor is not None and other:
            wants.append(f"{sign} {factor:g} x {name}")
            met = met and (own >= factor * other if row.high else own <= factor * other)
    if row.limit is not None:
        wants.append(f"{sign} {row.limit:,g}")
        met = met and (own >= row.limit if row.high else own <= row.limit)
    return f"{', '.join(wants)}: {'yes' if met else '**no**'}" if wants else ""


def table(pybroker: Results, apache: Results, floor: Results, rows: Sequence[Row] = ROWS) -> str:
    """The figures that are there, as a Markdown table; without any of the floor, without its columns."""
    heads = ["", "pybroker", "Kafka 3.9.2", "floor", "÷ Kafka", "÷ floor", "target"]
    cells = [heads, ["---", "--:", "--:", "--:", "--:", "--:", "---"]]
    for row in rows:
        values = [results.get(row.measure, {}).get(row.figure) for results in (pybroker, apache, floor)]
        own, kafkas, floors = values
        if own is None and kafkas is None:
            continue
        ratios = [f"{own / other:.2f}" if own and other and other > 0 else "" for other in (kafkas, floors)]
        wanted = verdict(row, own, kafkas, floors) if own is not None else ""
        cells.append([row.label, *map(number, values), *ratios, wanted])
    shown = [at for at, head in enumerate(heads) if floor or "floor" not in head]
    return "".join("| " + " | ".join(line[at] for at in shown) + " |\n" for line in cells)


def with_section(document: str, title: str, text: str) -> str:
    """The document with `text` under "## title", in the place of what was there, or at its end."""
    parts = ("\n" + document).split("\n## ")
    sections = [part for part in parts[1:] if part.partition("\n")[0] != title]
    found = next((at for at, part in enumerate(parts[1:]) if part.partition("\n")[0] == title), len(sections))
    sections.insert(found, f"{title}\n\n{text}")
    return "\n\n## ".join(part.strip() for part in (parts[0], *sections)) + "\n"


def write_section(title: str, text: str) -> None:
    """Put it into bench/RESULTS.md."""
    document = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Results\n"
    RESULTS.write_text(with_section(document, title, text), encoding="utf-8")


def _kernel() -> str:
    """Its version without what a build adds to it."""
    return ".".join(platform.release().split(".")[:2])


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _filesystem(folder: Path) -> str:
    """The type of the file system that holds `folder`."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(len(fields[1]), fields[2]) for fields in mounts if folder.is_relative_to(fields[1])]
    return max(holding)[1] if holding else "unknown"


def _commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def heading(command: str, work: Path, *, with_kafka: bool, rounds: int, seconds: float, load: float) -> str:
    """Date, command, machine and versions; `load` is the machine's load average before anything was started."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("uvloop", "crc32c", "confluent-kafka"))
    facts = {
        "Command": f"`{command}`",
        "Date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {seconds:.0f} s, {rounds} round(s)",
        "Machine": f"{os.cpu_count()} x {_processor()}, {memory:.0f} GiB, Linux {_kernel()}, "
        f"{_filesystem(work)}, load average before the run {load:.1f}",
        "pybroker": f"commit {_commit()}, Python {sys.version.split()[0]}, {packages}",
    }
    if with_kafka:
        facts["Kafka"] = f"{kafka.RELEASE}, heap {kafka.HEAP}, {kafka.version()}"
    return "".join(f"- {name}: {text}\n" for name, text in facts.items())
