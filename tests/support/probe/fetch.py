"""Fetch: offsets, limits, sessions, old versions."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

from tests.support.probe import Case, ProbeClient, Step
from tests.support.probe.produce import PACKED, of, request
from tests.support.records import batch, headers

SHOWN = ("ErrorCode", "HighWatermark", "LastStableOffset", "LogStartOffset")


def fetch(
    offset: int = 0, topic: str = "p", partition: int = 0, size: int = 1 << 20, epoch: int = -1, **fields: Any
) -> dict[str, Any]:
    """A Fetch of one partition; fields are those of the request."""
    wanted = {
        "Partition": partition,
        "CurrentLeaderEpoch": epoch,
        "FetchOffset": offset,
        "PartitionMaxBytes": size,
    }
    defaults = {
        "ReplicaId": -1,
        "MaxWaitMs": 500,
        "MinBytes": 1,
        "MaxBytes": 1 << 20,
        "SessionId": 0,
        "SessionEpoch": -1,
    }
    return defaults | {"Topics": [{"Topic": topic, "Partitions": [wanted]}]} | fields


def summary(answer: dict[str, Any]) -> dict[str, Any]:
    """Error, session (new or none), and per partition the offsets, size and first batches."""
    partitions = [each for topic in answer["Responses"] for each in topic["Partitions"]]
    return {
        "ErrorCode": answer["ErrorCode"],
        "SessionId": "new" if answer["SessionId"] else 0,
        "parts": [_partition(each) for each in partitions],
    }


def _partition(part: dict[str, Any]) -> dict[str, Any]:
    records = part["Records"]
    starts = [(None, "cut") if each is None else (each.base_offset, None) for each in headers(records or b"")]
    # A cut batch is written down with its base offset too, which `headers` does not give.
    starts = [each if each[0] is not None else (_last_base(records), "cut") for each in starts]
    return {name: part[name] for name in SHOWN} | {
        "bytes": None if records is None else len(records),
        "batches": starts[:4],
    }


def _last_base(records: bytes) -> int:
    at = 0
    while at + 12 + int.from_bytes(records[at + 8 : at + 12], "big", signed=True) <= len(records):
        at += 12 + int.from_bytes(records[at + 8 : at + 12], "big", signed=True)
    return int.from_bytes(records[at : at + 8], "big", signed=True)


Fields = dict[str, Any]


def F(name: str, fields: Fields | Callable[[ProbeClient], Fields] | None = None, version: int = 11) -> Case:
    """A case that fetches and writes down the summary; fields may depend on the run."""

    def run(client: ProbeClient) -> Any:
        given = fields(client) if callable(fields) else fields or {}
        return summary(client.call("Fetch", version, given if "Topics" in given and version > 12 else fetch(**given)))

    return Case(name, "Fetch", run)


def at_end(more: int = 0, **fields: Any) -> Callable[[ProbeClient], Fields]:
    return lambda client: {"offset": client.probe.end_of_p + more} | fields


def by_id(topic_id: bytes) -> Fields:
    wanted = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1000}
    limits = {"ReplicaId": -1, "MaxWaitMs": 200, "MinBytes": 1, "MaxBytes": 1000, "SessionEpoch": -1}
    return limits | {"Topics": [{"TopicId": topic_id, "Partitions": [wanted]}]}


def session(*steps: tuple[str, Callable[[ProbeClient], Fields] | Fields]) -> Callable[[ProbeClient], str]:
    """A full fetch that opens a session, then the steps within it."""

    def run(client: ProbeClient) -> str:
        first = client.call("Fetch", 11, fetch(SessionEpoch=0))
        seen = [f"full: {summary(first)}"]
        for label, fields in steps:
            given = fields(client) if callable(fields) else fields
            answer = client.call("Fetch", 11, fetch(**given) | {"SessionId": first["SessionId"]})
            seen.append(f"{label}: {summary(answer)}")
        return " / ".join(seen)

    return run


def idle(epoch: int, wait_ms: int | None = None) -> Fields:
    """An incremental fetch that names no partition."""
    return {"SessionEpoch": epoch, "Topics": []} | ({} if wait_ms is None else {"MaxWaitMs": wait_ms})


def magics(version: int) -> Callable[[ProbeClient], Any]:
    def run(client: ProbeClient) -> Any:
        answer = client.call("Fetch", version, fetch(topic="clean"))
        return [
            (
                each["ErrorCode"],
                f"{len(each['Records'] or b'')} bytes",
                [
                    (batch.base_offset, f"magic {batch.magic}", f"attributes {batch.attributes}")
                    for batch in headers(each["Records"] or b"")
                    if batch is not None
                ],
            )
            for topic in answer["Responses"]
            for each in topic["Partitions"]
        ]

    return run


def remember_end(client: ProbeClient) -> None:
    client.probe.end_of_p = client.end_offset("p")


def fill_clean(client: ProbeClient) -> None:
    """Two batches whose insides are in order, one of them compressed."""
    client.call("Produce", 9, request(batch([(b"k", b"v", [(b"h", b"x")]), b"y"]), topic="clean"))
    client.call("Produce", 9, request(of(gzip.compress(gzip.decompress(PACKED)), 2, 1), topic="clean"))


CASES: list[Case | Step] = [
    Step(remember_end),
    F("offset 0"),
    F("offset -1", {"offset": -1}),
    F("offset above the end", {"offset": 10**7}),
    F("at the high watermark, wait 500 ms", at_end()),
    F("at the high watermark, MaxWaitMs 0", at_end(MaxWaitMs=0)),
    F("high watermark + 1", at_end(1)),
    F("MinBytes 0 at the high watermark", at_end(MinBytes=0)),
    F("MinBytes 10 MB, data there, MaxWaitMs 800", {"MinBytes": 10**7, "MaxWaitMs": 800}),
    F("MaxWaitMs -1", at_end(MaxWaitMs=-1)),
    F("MaxBytes 0", {"MaxBytes": 0}),
    F("MaxBytes -1", {"MaxBytes": -1}),
    F("MaxBytes 1 (first batch whole)", {"MaxBytes": 1}),
    F("partition max bytes 0", {"size": 0}),
    F("partition max bytes 1", {"size": 1}),
    F("partition max bytes -1", {"size": -1}),
    F("partition max bytes 100", {"size": 100}),
    F("unknown topic", {"topic": "nope"}),
    F("unknown partition", {"partition": 9}),
    F("invalid topic name", {"topic": "a b"}),
    F("current leader epoch too high", {"epoch": 5}),
    F("current leader epoch 0", {"epoch": 0}),
    F("replica id 7 (not a replica)", {"ReplicaId": 7}),
    F("isolation level 7", {"IsolationLevel": 7}),
    F("offset in the middle of a batch", {"offset": 1}),
    F("MinBytes unreachable, unknown topic too", {"topic": "nope", "MinBytes": 10**6, "MaxWaitMs": 1000}),
    F("no topics, session epoch -1", {"Topics": []}),
    F("unknown topic id", by_id(b"\5" * 16), 13),
    F("zero topic id", by_id(bytes(16)), 13),
    F("session id unknown, epoch 1", {"SessionId": 12345, "SessionEpoch": 1}),
    F("session id unknown, epoch 0", {"SessionId": 12345, "SessionEpoch": 0}),
    F("session id 0, epoch 1", {"SessionId": 0, "SessionEpoch": 1}),
    F("session id unknown, epoch -1 (close)", {"SessionId": 12345, "SessionEpoch": -1}),
    F("session epoch -2", {"SessionEpoch": -2}),
    Case(
        "session: new, then epoch 1 with no change",
        "Fetch",
        session(("epoch 1, no topics, MaxWaitMs 300", idle(1, 300)), ("epoch 2, no topics", idle(2, 300))),
    ),
    Case(
        "session: epoch 5 instead of 1",
        "Fetch",
        session(("epoch 5", idle(5)), ("then epoch 1", idle(1, 100))),
    ),
    Case(
        "session: partition moved to the end, then idle",
        "Fetch",
        session(
            ("epoch 1, offset at the end", at_end(SessionEpoch=1, MaxWaitMs=200)),
            ("epoch 2, no topics", idle(2, 200)),
            ("epoch 3, unknown topic added", {"SessionEpoch": 3, "topic": "nope", "MaxWaitMs": 200}),
            ("epoch 4, no topics", idle(4, 200)),
            ("epoch -1 with the id", idle(-1, 200)),
            ("epoch 5", idle(5, 200)),
        ),
    ),
    Step(fill_clean),
    *(
        Case("magic 2 data fetched with an old version: magics in the answer", "Fetch", magics(version))
        for version in (0, 1, 2, 3, 4, 9, 10)
    ),
    Case(
        "version 1 of data that has a batch with base timestamp -5",
        "Fetch",
        lambda client: str(len(client.call("Fetch", 1, fetch())["Responses"])),
    ),
]
