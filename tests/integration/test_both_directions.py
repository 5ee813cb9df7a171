"""One log directory, used by Apache Kafka 3.9.2, then by us, then by Apache Kafka again: nobody notices.

Kafka writes in all codecs, transactions (also open ones), a compacted topic, several segments; its metadata is imported
from ZooKeeper. Once with clean stops, once with every process killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.broker.cli import main
from pybroker.storage.tools.verify import Verification
from tests.support.broker import BrokerProcess, wait_until
from tests.support.java import need_java
from tests.support.kafka import KafkaBroker
from tests.support.records import batch
from tests.support.wire import WireClient
from tests.support.zookeeper import ZooKeeperServer

# Its stubs say otherwise than it is.
client_api: Any = pytest.importorskip("confluent_kafka")
admin_api: Any = pytest.importorskip("confluent_kafka.admin")

pytestmark = pytest.mark.timeout(900)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BROKER_ID = 7
# Compaction would change what the other one wrote; each has tests of its own for that.
SETTINGS = {
    "log.cleaner.enable": "false",
    "auto.create.topics.enable": "false",
    # A log start offset survives a crash from its checkpoint on.
    "log.initial.task.delay.ms": "200",
    "log.flush.start.offset.checkpoint.interval.ms": "200",
}
SEGMENTS = {"segment.bytes": "16384", "index.interval.bytes": "512"}
TOPICS = {
    **{f"codec-{codec}": SEGMENTS for codec in CODECS},
    "appended": {"message.timestamp.type": "LogAppendTime"},
    "compacted": SEGMENTS | {"cleanup.policy": "compact"},
    "shortened": SEGMENTS,
    "transactions": SEGMENTS,
    "wide": {},
}
WIDE = 5
Found = dict[tuple[str, int], list[tuple[Any, ...]]]


def create_topics(address: str) -> None:
    admin = admin_api.AdminClient({"bootstrap.servers": address})
    wanted = [
        admin_api.NewTopic(name, WIDE if name == "wide" else 1, 1, config=config) for name, config in TOPICS.items()
    ]
    for future in admin.create_topics(wanted).values():
        future.result(30)


def write(address: str, seed: str, *, codecs: tuple[str, ...] = CODECS) -> None:
    """Some hundred records a topic, acknowledged."""
    for codec in codecs:
        producer = client_api.Producer(
            {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 2, "batch.num.messages": 20}
        )
        for number in range(400):
            headers = [("h", b"1"), ("n", None)] if number % 5 == 0 else []
            producer.produce(f"codec-{codec}", b"%d " % number * 20, seed.encode() + b"%d" % number, headers=headers)
            if codec == "none":
                producer.produce("appended", b"%d" % number, None)
                value = None if number % 9 == 0 else b"%d" % number
                producer.produce("compacted", value, b"%d" % (number % 30))
                producer.produce("shortened", b"v" * 100, b"%d" % number)
                producer.produce("wide", b"w" * 10, None, partition=number % WIDE)
        assert producer.flush(60) == 0


def write_transactions(address: str) -> None:
    """Committed, aborted, and in the end an open one, of several producers and interleaved."""
    producers = [
        client_api.Producer(
            {"bootstrap.servers": address, "transactional.id": f"x{number}", "transaction.timeout.ms": 900_000}
        )
        for number in range(3)
    ]
    for producer in producers:
        producer.init_transactions(60)
    for turn in range(6):
        for producer in producers:
            producer.begin_transaction()
        for number in range(30):
            for at, producer in enumerate(producers):
                producer.produce("transactions", b"%d-%d-%d " % (turn, at, number) * 10, b"k")
            if number % 10 == 9:
                for producer in producers:
                    producer.flush(60)
        for at, producer in enumerate(producers):
            if (turn + at) % 3:
                producer.commit_transaction(60)
            elif turn < 5:
                producer.abort_transaction(60)
            # else it stays open


def shorten(address: str) -> None:
    admin = admin_api.AdminClient({"bootstrap.servers": address})
    for future in admin.delete_records([client_api.TopicPartition("shortened", 0, 123)]).values():
        future.result(30)


def read(address: str, isolation: str) -> Found:
    """Every record of every topic, by what a consumer is told."""
    consumer = client_api.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    wanted = {(name, index) for name in TOPICS for index in range(WIDE if name == "wide" else 1)}
    found: Found = {each: [] for each in wanted}
    consumer.assign([client_api.TopicPartition(name, index, client_api.OFFSET_BEGINNING) for name, index in wanted])
    deadline = time.monotonic() + 120
    while wanted:
        assert time.monotonic() < deadline, f"no end of {wanted}"
        message = consumer.poll(1)
        if message is None:
            continue
        where = (message.topic(), message.partition())
        if message.error():
            assert message.error().code() == client_api.KafkaError._PARTITION_EOF, message.error()
            wanted.discard(where)
            continue
        found[where].append((message.offset(), message.timestamp(), message.key(), message.value(), message.headers()))
    consumer.close()
    return found


def raw(host: str, port: int) -> dict[tuple[str, int], bytes]:
    """The bytes of every partition, as Fetch gives them."""
    found = {}
    with WireClient(host, port, timeout=60) as client:
        for name in TOPICS:
            for index in range(WIDE if name == "wide" else 1):
                # A Kafka that has just started accepts connections before it leads.
                wait_until(lambda name=name, index=index: _fetch(client, name, index, 0)["ErrorCode"] in (0, 1), 60)
                found[name, index] = b"".join(_fetch_all(client, name, index))
    return found


def _fetch(client: WireClient, topic: str, index: int, offset: int) -> dict[str, Any]:
    return client.fetch(topic, offset, partition=index, max_bytes=1 << 20, wait_ms=0)


def _fetch_all(client: WireClient, topic: str, index: int) -> Iterator[bytes]:
    offset, end = client.end_offset(topic, index, -2), client.end_offset(topic, index)
    while offset < end:
        answer = _fetch(client, topic, index, offset)
        records = answer["Records"]
        assert records, answer
        yield records
        at = 0
        while at < len(records):  # the last batch tells where the next fetch begins
            last = at
            at += 12 + int.from_bytes(records[at + 8 : at + 12], "big")
        offset = (
            int.from_bytes(records[last : last + 8], "big") + int.from_bytes(records[last + 23 : last + 27], "big") + 1
        )


def everything(address: str) -> tuple[Found, Found]:
    return read(address, "read_uncommitted"), read(address, "read_committed")


def errors(directory: Path) -> list[Any]:
    return [each for each in Verification([directory], deep=True).run() if each.severity == "error"]


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_there_and_back(kill: bool, tmp_path: Path) -> None:
    need_java("3.9.2")
    data = tmp_path / "data"
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        kafka = KafkaBroker(tmp_path / "kafka", data, f"{zookeeper.address}/k", BROKER_ID, SETTINGS)
        ours = BrokerProcess(data, SETTINGS)
        try:
            kafka.start()
            create_topics(kafka.address)
            write(kafka.address, "a")
            write_transactions(kafka.address)
            shorten(kafka.address)
            starts = data / "log-start-offset-checkpoint"
            wait_until(lambda: "shortened 0 123\n" in starts.read_text(), 30)
            seen, seen_raw = everything(kafka.address), raw("127.0.0.1", kafka.port)
            kafka.kill() if kill else kafka.stop()

            assert main(["metadata", "import", f"zk://{zookeeper.address}/k", "--data-dir", str(data)]) == 0
            ours.start()
            assert raw(ours.host, ours.port) == seen_raw
            assert everything(ours.address) == seen
            write(ours.address, "b")
            with ours.client() as client:
                client.create_topic("made-here")
                assert client.produce("made-here", batch([b"x"]))["ErrorCode"] == 0
            more, more_raw = everything(ours.address), raw(ours.host, ours.port)
            assert all(bytes_now.startswith(seen_raw[where]) for where, bytes_now in more_raw.items())
            ours.kill() if kill else ours.stop()
            assert errors(data) == []

            target = f"zk://{zookeeper.address}/k"
            wait_until(lambda: main(["metadata", "export", target, "--data-dir", str(data)]) == 0, 30, "no broker")
            kafka.start()
            assert raw("127.0.0.1", kafka.port) == more_raw
            assert everything(kafka.address) == more
            write(kafka.address, "c", codecs=("none",))
            with kafka.client() as client:
                assert client.end_offset("made-here") == 1
            last = everything(kafka.address)
            kafka.kill() if kill else kafka.stop()
            assert errors(data) == []

            # Once more here: what only Kafka has changed since is not needed.
            ours.start()
            assert everything(ours.address) == last
            ours.stop()
            ours.check_log()
        finally:
            kafka.kill()
            ours.kill()
