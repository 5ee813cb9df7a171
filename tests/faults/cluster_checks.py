"""What has to hold when a cluster has come to rest: the replicas' files against each other and against the clients."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from pybroker.protocol.records.header import read_header
from pybroker.protocol.records.record import Record, iter_records
from pybroker.storage.tools.verify import Verification
from tests.faults.cluster_rounds import Cluster, Node
from tests.faults.cluster_traffic import At, Sender, Traffic
from tests.support.broker import CRASH, wait_until

CATCH_UP_S = 120.0
FILES_S = 30.0  # compaction and retention swap files below a reader
COMPACTED = "compacted"  # topics whose names start so

#: The producer of what nobody promised to keep.
UNSURE = b"unsure"

T = TypeVar("T")
P = ParamSpec("P")

#: Errors that a broker may log when others, or ZooKeeper, are taken away from it.
ALLOWED_ERRORS: tuple[str, ...] = ()
_ERROR = re.compile(r"^\S+ \S+ (?:ERROR|CRITICAL) .*$", re.MULTILINE)


class Batch(NamedTuple):
    first: int
    last: int
    data: bytes


class Written(NamedTuple):
    """A numbered record in a log."""

    offset: int
    number: int
    producer_id: int
    epoch: int


def check_everything(cluster: Cluster, traffic: Traffic) -> dict[At, int]:
    """Producers are held and the cluster is settled. Returns where each plain partition ends."""
    check_logs_of(cluster.nodes.values())
    ends = {}
    for at in sorted(cluster.partitions()):
        if at[0].startswith(COMPACTED):
            eventually(check_compacted, cluster, traffic, at)
        elif not at[0].startswith("__"):
            ends[at] = eventually(check_plain, cluster, traffic, at)
    check_group(traffic, ends)
    for node in cluster.nodes.values():
        eventually(check_files, node)
    return ends


def eventually(check: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """The check's result once it holds: files change while they are read, and followers fetch what was the last."""
    deadline = time.monotonic() + FILES_S
    while True:
        try:
            return check(*args, **options)
        except (AssertionError, FileNotFoundError, KeyError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# Logs


def batches(directory: Path, start: int = 0) -> Iterator[Batch]:
    """What a replica holds from `start` on, in order. AssertionError where offsets go back or a batch is not whole."""
    before = -1
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        at = 0
        while at < len(data):
            header = read_header(data, at)
            end = at + header.size
            assert end <= len(data), f"{segment}: the batch at {at} is cut"
            assert header.base_offset > before, f"{segment}: {header.base_offset} after {before}"
            before = header.last_offset
            if before >= start:
                yield Batch(header.base_offset, before, data[at:end])
            at = end


def first_offset(directory: Path) -> int:
    """Of the first segment."""
    return min(int(segment.stem) for segment in directory.glob("*.log"))


def records_of(directory: Path) -> Iterator[Record]:
    for batch in batches(directory):
        yield from iter_records(batch.data)


def check_plain(cluster: Cluster, traffic: Traffic, at: At) -> int:
    """Equal bytes on all replicas from the highest start on; each acknowledged record where it was said to be; each
    producer's numbers in order without gaps or repeats; what the group saw is what is there. The end of the log."""
    leader, _, replicas, _ = cluster.partition(at)
    with cluster.client(leader) as client:
        start, end = client.end_offset(*at, timestamp=-2), client.end_offset(*at)
    # A kill may undo DeleteRecords at one replica and not at another: starts are checkpointed now and then.
    start = max(start, *(first_offset(place(cluster.nodes[each], at)) for each in replicas))
    held = {each: list(batches(place(cluster.nodes[each], at), start)) for each in replicas}
    first = held[leader]
    for each, found in held.items():
        assert found == first, f"{at} on {each} differs from leader {leader}: {difference(found, first)}"
    assert (first[-1].last + 1 if first else start) == end, f"{at} ends at {end}, its files at {first[-1:]}"
    values: dict[int, bytes] = {}
    sessions: dict[int, tuple[int, int]] = {}
    for batch in first:
        session = session_of(batch)
        for record in iter_records(batch.data):
            values[record.offset], sessions[record.offset] = bytes(record.value or b""), session
    visible = {offset: value for offset, value in values.items() if offset >= start}
    check_producers(traffic, at, visible, start, sessions)
    for offset, seen in list(traffic.seen.values[at].items()):
        assert offset < start or values.get(offset) == seen, f"{at} {offset}: seen {seen!r}, is {values.get(offset)!r}"
    return end


def session_of(batch: Batch) -> tuple[int, int]:
    """Producer id and epoch."""
    header = read_header(batch.data, 0)
    return header.producer_id, header.producer_epoch


def is_next(one: Written, two: Written) -> bool:
    """librdkafka begins a new epoch, and sends anew what may have been written, when a broker tells it that a sequence
    number is out of order: it sent a batch to a new leader before the old one had answered the batch before. Such a
    copy is its own doing, of what was not acknowledged; a copy in the same epoch is a broker's."""
    again = two.producer_id == one.producer_id and two.epoch > one.epoch and two.number <= one.number
    return two.number == one.number + 1 or again


def check_producers(
    traffic: Traffic, at: At, values: dict[int, bytes], start: int, sessions: dict[int, tuple[int, int]]
) -> None:
    """`sessions` has the producer's id and epoch by offset."""
    numbers: dict[bytes, list[Written]] = defaultdict(list)
    for offset, value in sorted(values.items()):
        name, _, number, _ = value.split(b":", 3)
        if name != UNSURE:
            numbers[name].append(Written(offset, int(number), *sessions[offset]))
    for name, found in numbers.items():
        wrong = [(one, two) for one, two in pairwise(found) if not is_next(one, two)]
        assert not wrong, f"{at}: numbers of {name!r} are not in order, or are there twice: {wrong[:5]}"
    for producer in traffic.producers:
        acknowledged, found = producer.acknowledged_at(at), numbers.get(producer.name.encode(), [])
        for offset, value in acknowledged.items():
            there = values.get(offset)
            assert offset < start or there == value, f"{at} {offset}: acknowledged {value!r}, there is {there!r}"
        latest = {written.number: written.offset for written in found}
        twice = [written for written in found if written.offset != latest[written.number]]
        assert not any(written.offset in acknowledged for written in twice), f"{at}: doubled after its answer: {twice}"
        sent = producer.next.get(at, 0)
        end = found[-1].number if found else sent - 1
        assert end == sent - 1, f"{at}: {producer.name} sent up to {sent - 1}, there is {end}"


def check_compacted(cluster: Cluster, traffic: Traffic, at: At) -> None:
    """Every replica holds each key's last value, and no offset is said to hold two."""
    (sender,) = (each for each in traffic.producers if isinstance(each, Sender) and at[0] in each.counts)
    everywhere: dict[int, tuple[bytes, bytes | None]] = {}
    for each in cluster.partition(at)[2]:
        last: dict[bytes, bytes | None] = {}
        for record in records_of(place(cluster.nodes[each], at)):
            assert record.key is not None
            key, value = bytes(record.key), None if record.value is None else bytes(record.value)
            last[key] = value
            other = everywhere.setdefault(record.offset, (key, value))
            assert other == (key, value), f"{at} {record.offset} is {(key, value)} on {each}, elsewhere {other}"
        wrong = {key: (value, last.get(key)) for key, value in sender.last[at].items() if last.get(key) != value}
        assert not wrong, f"{at} on {each}: last values sent and found: {wrong}"


def place(node: Node, at: At) -> Path:
    return node.data_dir / f"{at[0]}-{at[1]}"


def difference(some: Sequence[Batch], others: Sequence[Batch]) -> str:
    """In words, the first one."""
    for one, two in zip(some, others, strict=False):
        if one != two:
            return f"{one.first}..{one.last} of {len(one.data)} bytes, and {two.first}..{two.last} of {len(two.data)}"
    return f"{len(some)} batches up to {some[-1:]}, and {len(others)} up to {others[-1:]}"


# The group, the files, the brokers' logs


def check_group(traffic: Traffic, ends: dict[At, int]) -> None:
    """It comes to see every record there is; what it has committed is kept."""
    wanted = {at for at in ends if at[0] in traffic.topics}
    acknowledged = {
        at: {offset for producer in traffic.producers for offset in producer.acknowledged_at(at)} for at in wanted
    }

    def missing() -> dict[At, list[int]]:
        traffic.check()
        seen = traffic.seen.values
        unseen = {at: sorted(offsets - seen[at].keys()) for at, offsets in acknowledged.items()}
        return {at: offsets for at, offsets in unseen.items() if offsets}

    try:
        wait_until(lambda: not missing(), CATCH_UP_S, "the group having seen everything")
    except AssertionError as error:
        raise AssertionError(f"{error}: {missing()}") from None
    before = dict(traffic.seen.committed)
    after = traffic.committed()
    lost = {at: (offset, after.get(at)) for at, offset in before.items() if after.get(at, -1) < offset}
    assert not lost, f"committed, and what the coordinator has: {lost}"


def check_files(node: Node) -> None:
    """Nothing is wrong with any file in its log directory."""
    errors = [each for each in Verification([node.data_dir]).run() if each.severity == "error"]
    assert not errors, f"broker {node.broker_id}: {errors[:5]}"


def check_logs_of(nodes: Iterable[Node]) -> None:
    """No traceback, and no error but those that a hurt cluster brings."""
    for node in nodes:
        text = node.new_log_text()
        crash = CRASH.search(text)
        assert not crash, f"broker {node.broker_id}:\n{text[max(0, crash.start() - 500) : crash.start() + 3000]}"
        errors = [line for line in _ERROR.findall(text) if not any(kind in line for kind in ALLOWED_ERRORS)]
        assert not errors, f"broker {node.broker_id}: {errors[:5]}"
