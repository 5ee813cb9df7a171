#!/usr/bin/env python3
"""Raw-socket loads on one broker: what the broker costs, with almost no cost of a client beside it.

    rawload.py HOST:PORT --pid PID [--topic T] [--gb 1] [--only NAME ...]

Prints a JSON object a measure. Batches are encoded once and sent again and again. The topic has eight partitions:
0 for single records, 1 for 64 KiB batches (read again by `fetch` and `cold-read`), 2 for acks=all, 3 for small records.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench import wire
from bench.processes import Figures, measured, memory_mb, percentiles
from bench.wire import Address, Connection

BIG = wire.batch([os.urandom(1000)] * 64)
SMALL = wire.batch([b"x" * 100] * 150)
ONE = wire.batch([b"y" * 100])
SINGLE, FILLED, ALL, RECORDS = range(4)  # partitions
IN_FLIGHT = 5
FETCH_BYTES = 1 << 20
BESIDE_BYTES_PER_S = 60e6
BESIDE_METADATA_PER_S = 20
CONNECTIONS = 900

Result = tuple[str, Figures]


@dataclass
class Target:
    """The broker a load is thrown at; `log` is the folder of a partition's files, where it can be told."""

    address: Address
    pids: list[int]
    topic: str = "raw"
    gigabytes: float = 1.0
    log: Callable[[int], list[Path]] | None = None
    filled: bool = field(default=False)

    def batches(self, size: int, share: float = 1.0) -> int:
        return max(20, int(self.gigabytes * share * 1e9) // size)

    def fill(self) -> None:
        """Partition 1 holds `gigabytes` from now on."""
        if not self.filled:
            pump(self.address, self.topic, FILLED, BIG, 1, self.batches(len(BIG)))
            self.filled = True


def pump(
    address: Address, topic: str, partition: int, records: bytes, acks: int, count: int, per_s: float | None = None
) -> None:
    """Produce the same batch `count` times, five requests in flight, not faster than `per_s` a second."""
    connection, frame = Connection(address), wire.produce(topic, partition, records, acks)
    sent = answered = 0
    began = time.perf_counter()
    while answered < count:
        while sent < count and sent - answered < IN_FLIGHT:
            if per_s is not None and (ahead := sent / per_s - (time.perf_counter() - began)) > 0:
                if sent > answered:
                    break  # look for answers first
                time.sleep(ahead)
            connection.send(frame)
            sent += 1
        wire.base_offset(connection.answer(), topic)
        answered += 1
    connection.close()


def produce_1k(target: Target) -> Iterator[Result]:
    """64 KiB batches of 64 records of 1 KB."""
    count = target.batches(len(BIG))
    with measured(target.pids) as figures:
        pump(target.address, target.topic, FILLED, BIG, 1, count)
        figures["bytes"] = count * len(BIG)
    target.filled = True
    yield "produce-1k", figures


def produce_1k_all(target: Target) -> Iterator[Result]:
    """The same with acks=all (one replica)."""
    count = target.batches(len(BIG))
    with measured(target.pids) as figures:
        pump(target.address, target.topic, ALL, BIG, -1, count)
        figures["bytes"] = count * len(BIG)
    yield "produce-1k-all", figures


def produce_100b(target: Target) -> Iterator[Result]:
    """16 KiB batches of 150 records of 100 B, half the volume."""
    count = target.batches(len(SMALL), 0.5)
    with measured(target.pids) as figures:
        pump(target.address, target.topic, RECORDS, SMALL, 1, count)
        figures["bytes"] = count * len(SMALL)
    yield "produce-100b", figures


def read_all(address: Address, topic: str, partition: int, wanted: int) -> int:
    """Fetch from the beginning until at least `wanted` bytes came; how many came."""
    connection, offset, got = Connection(address), 0, 0
    while got < wanted:
        fetched = wire.Fetched(connection.ask(wire.fetch(topic, partition, offset, FETCH_BYTES)), topic, offset)
        if fetched.next_offset == offset:
            raise RuntimeError(f"no progress at {offset}, high watermark {fetched.high_watermark}")
        offset, got = fetched.next_offset, got + fetched.size
    connection.close()
    return got


def fetch(target: Target) -> Iterator[Result]:
    """The filled partition from its beginning, twice."""
    target.fill()
    wanted = target.batches(len(BIG)) * len(BIG) - (4 << 20)
    for name in ("fetch-1st", "fetch-2nd"):
        with measured(target.pids) as figures:
            figures["bytes"] = read_all(target.address, target.topic, FILLED, wanted)
        yield name, figures


def ping_times(target: Target, again: Callable[[int], bool]) -> list[float]:
    """Latencies, s, of one-record produces, one after the other, while again(number so far); of one at least."""
    connection, frame = Connection(target.address), wire.produce(target.topic, SINGLE, ONE, 1)
    for _ in range(50):
        connection.ask(frame)
    times: list[float] = []
    while not times or again(len(times)):
        began = time.perf_counter()
        connection.ask(frame)
        times.append(time.perf_counter() - began)
    connection.close()
    return times


def ping(target: Target) -> Iterator[Result]:
    """One-record produces, one after the other on one connection."""
    with measured(target.pids) as figures:
        times = ping_times(target, lambda done: done < 5000)
        figures |= percentiles(times)
        figures["n"] = len(times)
    yield "ping", figures


@contextmanager
def beside(work: Callable[..., None], *arguments: object) -> Iterator[multiprocessing.Process]:
    """A process of its own that does `work` until the block ends; RuntimeError if it failed."""
    process = multiprocessing.Process(target=work, args=arguments, daemon=True)
    process.start()
    try:
        yield process
        if process.exitcode:
            raise RuntimeError(f"{work.__name__} failed beside the load")
    finally:
        process.kill()
        process.join()


def ping_beside_load(target: Target) -> Iterator[Result]:
    """Pings while another process produces 64 KiB batches at 60 MB/s, a load that all bear."""
    arguments = (target.address, target.topic, ALL, BIG, 1, 1 << 40, BESIDE_BYTES_PER_S / len(BIG))
    with beside(pump, *arguments):
        time.sleep(0.5)
        with measured(target.pids) as figures:
            times = ping_times(target, lambda done: done < 2000)
            figures |= percentiles(times)
            figures["n"] = len(times)
    yield "ping-beside-load", figures


def drop_from_page_cache(files: list[Path]) -> None:
    """The kernel forgets what it holds of these files."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _read_once(address: Address, topic: str, wanted: int) -> None:
    read_all(address, topic, FILLED, wanted)


def ping_beside_cold_read(target: Target) -> Iterator[Result]:
    """Pings while another client reads the filled partition, twice, none of it in the page cache."""
    if target.log is None:
        return
    target.fill()
    wanted = target.batches(len(BIG)) * len(BIG) - (4 << 20)
    times: list[float] = []
    reading = 0.0
    with measured(target.pids) as figures:
        for _ in range(2):
            drop_from_page_cache(target.log(FILLED))
            began = time.perf_counter()
            with beside(_read_once, target.address, target.topic, wanted) as reader:
                times += ping_times(target, lambda done, reader=reader: reader.is_alive())  # type: ignore[misc]
            reading += time.perf_counter() - began
        figures |= percentiles(times)
        figures["read_MB/s"] = 2 * wanted / reading / 1e6
    figures["cpu_s_per_GB"] = figures["cpu_s"] / (2 * wanted / 1e9)
    yield "ping-beside-cold-read", figures


def _ask_metadata(address: Address, topic: str) -> None:
    connection, frame = Connection(address), wire.metadata(topic)
    began = time.perf_counter()
    for number in itertools.count():
        if (ahead := began + number / BESIDE_METADATA_PER_S - time.perf_counter()) > 0:
            time.sleep(ahead)
        connection.ask(frame)


def ping_beside_metadata(target: Target, topic: str) -> Iterator[Result]:
    """Pings while another client asks for the metadata of `topic` 20 times a second, which all bear."""
    connection, frame = Connection(target.address), wire.metadata(topic)
    connection.ask(frame)
    with measured(target.pids) as alone:
        for _ in range(500):
            connection.ask(frame)
        alone["n"] = 500
    connection.close()
    with beside(_ask_metadata, target.address, topic):
        time.sleep(0.5)
        with measured(target.pids) as figures:
            until = time.perf_counter() + 3
            figures |= percentiles(ping_times(target, lambda done: time.perf_counter() < until))
    yield "metadata-10000-partitions", alone
    yield "ping-beside-metadata", figures


def requests(target: Target) -> Iterator[Result]:
    """One-record produces from four connections with five in flight each."""
    count, connections = max(2000, int(20_000 * target.gigabytes)), 4
    arguments = [(target.address, target.topic, index, ONE, 1, count) for index in range(4)]
    threads = [threading.Thread(target=pump, args=each) for each in arguments]
    with measured(target.pids) as figures:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        figures["n"] = count * connections
    yield "requests", figures


def metadata(target: Target) -> Iterator[Result]:
    """Metadata of the one topic, one request after the other."""
    connection, frame, count = Connection(target.address), wire.metadata(target.topic), 5000
    with measured(target.pids) as figures:
        for _ in range(count):
            connection.ask(frame)
        figures["n"] = count
    connection.close()
    yield "metadata", figures


def idle_connections(target: Target) -> Iterator[Result]:
    """900 connections at once, each answered ApiVersions, then idle."""
    before = memory_mb(target.pids)
    sockets = []
    with measured(target.pids) as figures:
        for _ in range(CONNECTIONS):
            sockets.append(socket.create_connection(target.address, timeout=60))
            sockets[-1].sendall(wire.api_versions())
        for each in sockets:
            each.recv(4096)
        figures["n"] = CONNECTIONS
    figures["kb_each"] = (memory_mb(target.pids) - before) * 1024 / CONNECTIONS
    for each in sockets:
        each.close()
    yield "idle-conns", figures


def produce_latency(target: Target) -> Iterator[Result]:
    """One-record produces at 500 a second, on one connection."""
    connection, frame = Connection(target.address), wire.produce(target.topic, SINGLE, ONE, 1)
    times = []
    with measured(target.pids) as figures:
        began = time.perf_counter()
        for number in range(3000):
            if (ahead := began + number / 500 - time.perf_counter()) > 0:
                time.sleep(ahead)
            sent = time.perf_counter()
            connection.ask(frame)
            times.append(time.perf_counter() - sent)
        figures |= percentiles(times)
    connection.close()
    yield "produce-latency", figures


def _consume(address: Address, topic: str, partition: int, offset: int, ends: int, results: object) -> None:
    """Long polls; sends the time at which each offset up to `ends` was seen."""
    connection, seen = Connection(address), []
    while offset < ends:
        fetched = wire.Fetched(connection.ask(wire.fetch(topic, partition, offset, FETCH_BYTES)), topic, offset)
        seen += [time.perf_counter()] * (fetched.next_offset - offset)
        offset = fetched.next_offset
    results.send(seen)  # type: ignore[attr-defined]


def end_to_end(target: Target) -> Iterator[Result]:
    """From sending a one-record produce to its arrival at a consumer that long-polls, at 500 a second."""
    connection, frame, count = Connection(target.address), wire.produce(target.topic, SINGLE, ONE, 1), 3000
    first = wire.base_offset(connection.ask(frame), target.topic) + 1
    results, inlet = multiprocessing.Pipe(duplex=False)
    consumer = multiprocessing.Process(
        target=_consume, args=(target.address, target.topic, SINGLE, first, first + count, inlet), daemon=True
    )
    consumer.start()
    time.sleep(0.3)
    sent = []
    with measured(target.pids) as figures:
        began = time.perf_counter()
        for number in range(count):
            if (ahead := began + number / 500 - time.perf_counter()) > 0:
                time.sleep(ahead)
            sent.append(time.perf_counter())
            connection.ask(frame)
        if not results.poll(20):
            raise RuntimeError("the consumer did not see all records within 20 s")
        seen: list[float] = results.recv()
        figures |= percentiles([arrived - left for arrived, left in zip(seen, sent, strict=True)])
    consumer.join()
    connection.close()
    yield "end-to-end", figures


MEASURES: dict[str, Callable[[Target], Iterator[Result]]] = {
    "produce-1k": produce_1k,
    "produce-1k-all": produce_1k_all,
    "produce-100b": produce_100b,
    "fetch": fetch,
    "ping": ping,
    "ping-beside-load": ping_beside_load,
    "requests": requests,
    "metadata": metadata,
    "idle-conns": idle_connections,
    "produce-latency": produce_latency,
    "end-to-end": end_to_end,
    "ping-beside-cold-read": ping_beside_cold_read,
}
# The floor answers Produce and Fetch only, and does not wait with a Fetch.
OF_THE_FLOOR = ("produce-1k", "produce-1k-all", "produce-100b", "fetch", "ping", "ping-beside-load", "requests",
                "produce-latency")  # fmt: skip


def warm_up(target: Target) -> None:
    """One pass of the same traffic, on partitions that no measure reads: a JVM needs it to be at its best."""
    big = target.batches(len(BIG))
    for partition, records, acks, count in (
        (SINGLE, ONE, 1, 20_000),
        (4, BIG, 1, big),
        (5, BIG, -1, big // 4),
        (6, SMALL, 1, target.batches(len(SMALL), 0.25)),
    ):
        pump(target.address, target.topic, partition, records, acks, count)
    read_all(target.address, target.topic, 4, (big - 50) * len(BIG))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--pid", type=int, nargs="*", default=[], help="processes of the broker")
    parser.add_argument("--topic", default="raw", help="a topic of eight partitions")
    parser.add_argument("--gb", type=float, default=1.0, help="gigabytes of each large load")
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=list(MEASURES), default=list(MEASURES))
    options = parser.parse_args()
    host, port = options.address.rsplit(":", 1)
    target = Target((host, int(port)), options.pid, options.topic, options.gb)
    warm_up(target)
    for name, measure in MEASURES.items():
        if name in options.only:
            for result, figures in measure(target):
                print(json.dumps({"name": result} | {key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
