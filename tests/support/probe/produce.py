"""Produce: acks, unknown partitions, damaged batches, old formats, codecs, timestamps, limits, producer state."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Callable
from typing import Any

from tests.support.probe import Case, ProbeClient, Step, calls
from tests.support.probe.framing import correlation_id
from tests.support.records import batch, message, record
from tests.support.schema import response_json, varint

Records = bytes | None
HOUR = 3_600_000


def request(
    records: Records, acks: int = -1, topic: str = "p", partition: int = 0, txn: str | None = None
) -> dict[str, Any]:
    data = [{"Name": topic, "PartitionData": [{"Index": partition, "Records": records}]}]
    return {"TransactionalId": txn, "Acks": acks, "TimeoutMs": 3000, "TopicData": data}


def two(**wrong: Any) -> bytes:
    """A batch of two records; arguments put other values in its header."""
    return batch([b"x", b"y"], **wrong)


def P(name: str, records: Records | Callable[[], bytes], version: int = 9, **where: Any) -> Case:
    """A case that produces one records field and writes down the partition's answer without its index."""

    def run(client: ProbeClient) -> Any:
        data = records() if callable(records) else records
        answer = response_json("Produce", version, client.call("Produce", version, request(data, **where)))
        partitions = [each for topic in answer["Responses"] for each in topic["PartitionResponses"]]
        return [{key: value for key, value in each.items() if key != "Index"} for each in partitions]

    return Case(name, "Produce", run)


def unanswered(records: bytes, topic: str = "p") -> Callable[[ProbeClient], Any]:
    """Sends with acks=0 and waits for the close (or 1.5 s)."""

    def run(client: ProbeClient) -> str:
        client.send("Produce", 9, request(records, 0, topic))
        client.sock.settimeout(1.5)
        return client.receive().hex()

    return run


def next_is_answered(client: ProbeClient) -> str:
    client.send("Produce", 9, request(two(), 0))
    sent = client.send("Metadata", 1, {"Topics": []})
    return f"only the following request is answered: {correlation_id(client.receive()) == sent}"


def with_length(length: int) -> bytes:
    """A batch whose length field is not its own."""
    whole = two()
    return whole[:8] + struct.pack(">i", length) + whole[12:]


def ahead(milliseconds: int) -> Callable[[], bytes]:
    return lambda: two(ts=int(time.time() * 1000) + milliseconds)


def null_header_key() -> bytes:
    body = b"\0\0\0" + varint(-1) + varint(-1) + varint(1) + varint(-1) + varint(-1)
    return batch(payload=varint(len(body)) + body, count=1, last_delta=0)


def of(payload: bytes, count: int, attributes: int = 0) -> bytes:
    """A batch around an already encoded payload."""
    return batch(payload=payload, count=count, last_delta=count - 1, attributes=attributes)


def old(magic: int = 1, value: bytes = b"x", **wrong: Any) -> bytes:
    return message(value, magic=magic, **wrong)


def two_topics(client: ProbeClient) -> Any:
    topics = [{"Name": name, "PartitionData": [{"Index": 0, "Records": two()}]} for name in ("nope", "q")]
    answer = client.call("Produce", 9, {"Acks": -1, "TimeoutMs": 1000, "TopicData": topics})
    return [
        (topic["Name"], each["ErrorCode"], each["BaseOffset"])
        for topic in answer["Responses"]
        for each in topic["PartitionResponses"]
    ]


PACKED = gzip.compress(record(0, None, b"x") + record(1, None, b"y"))
TWICE = {"Name": "q", "PartitionData": [{"Index": 0, "Records": two()}, {"Index": 0, "Records": two()}]}

CASES: list[Case | Step] = [
    P("good batch", two()),
    P("acks=2", two(), acks=2),
    P("acks=-2", two(), acks=-2),
    P("acks=1", two(), acks=1),
    Case("acks=0, good", "Produce", next_is_answered),
    Case("acks=0, unknown topic", "Produce", unanswered(two(), "nope")),
    Case("acks=0, bad CRC", "Produce", unanswered(two(crc=1))),
    Case("acks=0, batch too large", "Produce", unanswered(batch([b"x" * 2000]), "small")),
    P("unknown topic", two(), topic="nope"),
    P("unknown partition", two(), partition=7),
    P("negative partition", two(), partition=-1),
    P("empty topic name", two(), topic=""),
    P("invalid topic name", two(), topic="a b"),
    P("internal topic __consumer_offsets", two(), topic="__consumer_offsets"),
    P("bad CRC", two(crc=12345)),
    P("bad CRC, v7", two(crc=12345), 7),
    P("records null", None),
    P("records empty (0 bytes)", b""),
    P("records of 10 zero bytes", bytes(10)),
    P("records of 61 zero bytes", bytes(61)),
    P("batch cut by 3 bytes", two()[:-3]),
    P("batch with 5 bytes after it", two() + b"12345"),
    P("two batches in one partition", two() + two()),
    P("batch with no records, count 0", batch()),
    P("no records, count 0, last delta 0", batch(last_delta=0)),
    P("count 3, two records", two(count=3)),
    P("count 1, two records", two(count=1)),
    P("count -1", two(count=-1)),
    P("last offset delta 5, two records", two(last_delta=5)),
    P("last offset delta 0, two records", two(last_delta=0)),
    P("last offset delta -1", two(last_delta=-1)),
    P("base offset 100", two(base=100)),
    P("base offset -7", two(base=-7)),
    P("partition leader epoch 9 in the batch", two(leader_epoch=9)),
    P("offset deltas not 0,1", of(record(5, None, b"x") + record(9, None, b"y"), 2)),
    P("record length wrong", of(b"\x7f" + record(0, None, b"x"), 1)),
    P("header key null", null_header_key()),
    P("header value null", batch([(None, b"x", [(b"h", None)])])),
    P("key and value null", batch([(None, None)])),
    P("batch length field 5", with_length(5)),
    P("batch length field larger than the data", with_length(5000)),
    P("batch length negative", with_length(-1)),
    P("magic 3", two(magic=3)),
    P("magic -1", two(magic=255)),
    P("magic 1 in Produce v9", old()),
    P("magic 0 in Produce v3", old(0), 3),
    P("magic 2 in Produce v2", two(), 2),
    P("magic 2 in Produce v0", two(), 0),
    P("magic 1 in Produce v2", old(), 2),
    P("magic 0 in Produce v2", old(0), 2),
    P("magic 0 in Produce v0", old(0), 0),
    P("magic 1 in Produce v0", old(), 0),
    P("magic 1 then magic 2, Produce v2", old() + two(), 2),
    P("magic 1, bad CRC", old(crc=1), 2),
    P("magic 0 + magic 1 in Produce v2", old(0) + old(), 2),
    P("two magic 1 messages", old() + old(value=b"y", offset=1), 2),
    P("compression id 5", two(attributes=5)),
    P("compression id 6", two(attributes=6)),
    P("compression id 7", two(attributes=7)),
    P("compression 1 (gzip) but plain data", two(attributes=1)),
    P("compression 4 (zstd), plain data", two(attributes=4)),
    P("compression 2 (snappy), plain data", two(attributes=2)),
    P("compression 3 (lz4), plain data", two(attributes=3)),
    P("zstd in Produce v6", two(attributes=4), 6),
    P("gzip, good", of(PACKED, 2, 1)),
    P("gzip, count wrong", of(PACKED, 3, 1)),
    P("gzip, empty stream, count 2", of(gzip.compress(b""), 2, 1)),
    P("control flag set", two(attributes=32)),
    P("transactional flag, no producer id", two(attributes=16)),
    P("unused attribute bits set (0x80)", two(attributes=0x80)),
    P("delete horizon flag (0x40)", two(attributes=0x40)),
    P("timestamp type LogAppendTime set by the client (0x08)", two(attributes=8)),
    P("timestamps -1", two(ts=-1)),
    P("base timestamp -5", two(ts=-5)),
    P("base timestamp 0", two(ts=0)),
    P("timestamp 10 years ahead", ahead(87600 * HOUR)),
    P("timestamp 2 h ahead", ahead(2 * HOUR)),
    P("max timestamp differs from the records", two(max_ts=5)),
    P("old timestamp, topic with message.timestamp.before.max.ms=1000", two(ts=1000000), topic="tsl"),
    P("future timestamp, message.timestamp.after.max.ms=1000", ahead(100000), topic="tsl"),
    P("topic with LogAppendTime", two(), topic="lat"),
    P("topic with compression.type=gzip", two(), topic="gz"),
    P("batch over max.message.bytes of the topic (1000)", batch([b"x" * 2000]), topic="small"),
    P("batch over the default 1048588", batch([b"x" * 1100000])),
    P("no key on a compacted topic", two(), topic="compacted"),
    P("acks=all, min.insync.replicas 2, one replica", two(), topic="isr2"),
    P("acks=1, min.insync.replicas 2", two(), topic="isr2", acks=1),
    P("producer id 5 epoch 0 seq 0, never given out", two(pid=5555, epoch=0, seq=0)),
    P("same again (duplicate)", two(pid=5555, epoch=0, seq=0)),
    P("sequence gap: seq 10", two(pid=5555, epoch=0, seq=10)),
    P("next sequence: 2", two(pid=5555, epoch=0, seq=2)),
    P("older sequence 1", two(pid=5555, epoch=0, seq=1)),
    P("new producer id, first seq 7", two(pid=5556, epoch=0, seq=7)),
    P("epoch 1, seq 0", two(pid=5555, epoch=1, seq=0)),
    P("epoch 0 after epoch 1 (fenced)", two(pid=5555, epoch=0, seq=4)),
    P("epoch 2, seq 5", two(pid=5555, epoch=2, seq=5)),
    P("producer id set, epoch -1", two(pid=5557, epoch=-1, seq=0)),
    P("producer id set, sequence -1", two(pid=5557, epoch=0, seq=-1)),
    P("two idempotent batches", two(pid=5558, epoch=0, seq=0) + two(pid=5558, epoch=0, seq=2)),
    P("transactional batch without AddPartitionsToTxn", two(pid=5560, epoch=0, seq=0, attributes=16), txn="ptx"),
    P("transactional.id set but batch not transactional", two(), txn="ptx"),
    P("two partitions of which one is bad is below", two()),
    Case("two topics, one unknown", "Produce", two_topics),
    Case("no topics at all", "Produce", calls("Produce", 9, {"Acks": -1, "TimeoutMs": 1000, "TopicData": []})),
    Case(
        "same partition twice in one request",
        "Produce",
        calls("Produce", 9, {"Acks": -1, "TimeoutMs": 1000, "TopicData": [TWICE]}),
    ),
]
