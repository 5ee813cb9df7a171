"""Loads on the logs themselves: appends to very many partitions, and compaction."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench import clients, wire
from bench.processes import measured, memory_mb
from bench.rawload import IN_FLIGHT, ONE, Result, Target
from bench.systems import System
from bench.wire import Address, Connection

PARTITIONS, LANES = 2_000, 4
REQUESTS = 60_000  # at one gigabyte

COMPACTED = "compacted"
KEYS = 1_000_000  # to a gigabyte, and each of them twice
KEY_BYTES, VALUE_BYTES, BATCH_RECORDS = 10, 480, 100
SEGMENTS = 20
SPREAD = 2_654_435_761  # a prime above any number of keys: n * SPREAD modulo their number meets all of them
SAMPLE_SECONDS = 0.25
PATIENCE_SECONDS, PATIENCE_PER_GIGABYTE = 120, 120
# What the cleaners say of each pass, in their logs: seconds.
PASSES = {
    "pybroker": re.compile(rf"{COMPACTED}-0\S* is compacted up to offset .*?, ([\d.]+) s, "),
    "kafka": re.compile(rf"cleaned log {COMPACTED}-0 .*?\n.*? MB of log processed in ([\d,.]+) seconds"),
}


# --- appends to many partitions --------------------------------------------------------------------------------------


def _append_round_robin(address: Address, topic: str, partitions: range, count: int) -> None:
    """One-record produces to each of `partitions` in turn, five in flight, `count` in all."""
    frames = [wire.produce(topic, partition, ONE, 1) for partition in partitions]
    connection, sent = Connection(address), 0
    for answered in range(count):
        while sent < count and sent - answered < IN_FLIGHT:
            connection.send(frames[sent % len(frames)])
            sent += 1
        wire.base_offset(connection.answer(), topic)
    connection.close()


def append_2000(target: Target) -> Iterator[Result]:
    """One-record produces to 2,000 partitions, round-robin, from four connections with five in flight each."""
    topic, count = "append-2000", max(PARTITIONS, int(REQUESTS * target.gigabytes))
    clients.create_topic(target, topic, PARTITIONS)
    for each in (PARTITIONS // LANES, count // LANES):  # once around, so that all files are there, and then in earnest
        shares = [range(lane, PARTITIONS, LANES) for lane in range(LANES)]
        lanes = [
            threading.Thread(target=_append_round_robin, args=(target.address, topic, share, each)) for share in shares
        ]
        with measured(target.pids) as figures:
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()
            figures["n"] = each * LANES
    yield "append-2000", figures


MEASURES: dict[str, Callable[[Target], Iterator[Result]]] = {"append-2000": append_2000}


# --- compaction ------------------------------------------------------------------------------------------------------


def keyed_batches(records: int, keys: int) -> Iterator[bytes]:
    """Batches of `records` records in all, whose keys come in no order, each as often as any other."""
    rest = wire.varint(VALUE_BYTES) + bytes(range(256)) * (VALUE_BYTES // 256) + bytes(VALUE_BYTES % 256) + b"\0"
    heads = []
    for delta in range(BATCH_RECORDS):
        head = b"\0\0" + wire.varint(delta) + wire.varint(KEY_BYTES)
        heads.append(wire.varint(len(head) + KEY_BYTES + len(rest)) + head)
    for first in range(0, records, BATCH_RECORDS):
        body = [b"%b%010d%b" % (head, (first + at) * SPREAD % keys, rest) for at, head in enumerate(heads)]
        yield wire.batch_of(b"".join(body), BATCH_RECORDS)


def _configure(target: Target, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": clients.address_of(target)})
    resource = ConfigResource(ResourceType.TOPIC, COMPACTED, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)


def _fill(target: Target, records: int, keys: int) -> None:
    connection, sent, answered = Connection(target.address), 0, 0
    for batch in keyed_batches(records, keys):
        connection.send(wire.produce(COMPACTED, 0, batch, 1))
        sent += 1
        if sent - answered == IN_FLIGHT:
            wire.base_offset(connection.answer(), COMPACTED)
            answered += 1
    for _ in range(sent - answered):
        wire.base_offset(connection.answer(), COMPACTED)
    connection.close()


def _cleaned_to(folder: Path) -> int:
    """The offset in cleaner-offset-checkpoint."""
    path = folder / "data" / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{COMPACTED} 0 ")), 0)


def compaction(system: System, gigabytes: float) -> Iterator[Result]:
    """One cleaner of a broker that has nothing else to do, over a topic of records of 500 bytes, two to a key."""
    keys = max(BATCH_RECORDS, int(KEYS * gigabytes))
    system.start()
    target = system.target(gigabytes)
    clients.create_topic(target, COMPACTED, 1)
    _configure(target, segment_bytes=str(max(1 << 20, int(gigabytes * 1e9) // SEGMENTS)))
    _fill(target, 2 * keys, keys)
    segments = system.log(COMPACTED, 0)
    size, records = sum(path.stat().st_size for path in segments[:-1]), int(segments[-1].stem)
    deadline = time.monotonic() + PATIENCE_SECONDS + PATIENCE_PER_GIGABYTE * gigabytes
    most_mb = 0.0
    with measured(target.pids) as figures:
        _configure(target, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
        while _cleaned_to(system.folder) < records:
            if time.monotonic() > deadline:
                raise RuntimeError(f"compaction has come to offset {_cleaned_to(system.folder)} of {records}")
            most_mb = max(most_mb, memory_mb(target.pids))
            time.sleep(SAMPLE_SECONDS)
    passes = PASSES[system.name].findall((system.folder / "out").read_text())
    if not passes:
        raise RuntimeError("the cleaner has not said how long it took")
    seconds = sum(float(each.replace(",", "")) for each in passes)
    figures |= {
        "s": seconds,
        "MB/s": size / seconds / 1e6,
        "records_per_s": records / seconds,
        "cpu_s_per_GB": figures["cpu_s"] / (size / 1e9),
        "most_mb": most_mb,
        "passes": len(passes),
    }
    yield "compaction", figures
    system.stop()
