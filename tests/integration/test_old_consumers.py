"""Old clients and large batches: the broker converts as consumers read, in bounded memory, and what producers send in
steps and in order."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from pybroker.protocol.compression import Codec
from pybroker.protocol.records.legacy import encode_set
from pybroker.protocol.records.record import Record
from tests.support.broker import BrokerProcess
from tests.support.records import batch
from tests.support.wire import WireClient

LOG_MB = 50
CONSUMERS = 20
MOST_MB = 60  # for all of them together; converted at once it would be 20 times 50 MB
BATCH_RECORDS, VALUE = 90, os.urandom(10_000)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("old")
    with BrokerProcess(folder / "data", {"log.segment.bytes": 100 << 20}) as running:
        with running.client() as client:
            client.create_topic("large")
            records = batch([VALUE] * BATCH_RECORDS, ts=1)
            while client.produce("large", records)["BaseOffset"] * len(VALUE) < LOG_MB << 20:
                pass
        yield running


def slow_consumer(broker: BrokerProcess) -> WireClient:
    """It has asked for all there is and has read nothing yet."""
    client = broker.client(timeout=60)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    client.send_fetch("large", 0, max_bytes=LOG_MB << 20, version=2)
    return client


def test_twenty_slow_consumers_in_bounded_memory(broker: BrokerProcess) -> None:
    with slow_consumer(broker) as first:
        assert len(first.receive()) > LOG_MB << 20  # what one conversion needs for a moment, it has had now
    before = broker.memory_mb()
    consumers = [slow_consumer(broker) for _ in range(CONSUMERS)]
    try:
        sizes = [int.from_bytes(client.read(4), "big") for client in consumers]
        assert all(size > LOG_MB << 20 for size in sizes)
        most = 0.0
        for megabyte in range(1, LOG_MB):
            for client in consumers[: CONSUMERS if megabyte < 5 else 2]:
                client.read(1 << 20)
            most = max(most, broker.memory_mb())
        assert most - before < MOST_MB, f"{most - before:.0f} MB for {CONSUMERS} consumers"
        for client, size in zip(consumers[:2], sizes, strict=False):
            client.read(size - ((LOG_MB - 1) << 20))
            assert client.end_offset("large") > 0  # the connection goes on with the next request
    finally:
        for client in consumers:
            client.close()


def test_others_are_served_while_it_converts(broker: BrokerProcess) -> None:
    with slow_consumer(broker) as slow, broker.client() as other:
        size = int.from_bytes(slow.read(4), "big")
        for left in range(size, 0, -(1 << 20)):
            slow.read(min(left, 1 << 20))
            assert other.call("ApiVersions", 0)["ErrorCode"] == 0


def test_an_old_producers_large_batches_keep_their_order(broker: BrokerProcess) -> None:
    """Sent without waiting, large ones before small ones of the newest kind."""
    many = [Record(at, 1, b"k", b"v" * 80) for at in range(8000)]
    large = bytes(encode_set(many, magic=1, codec=Codec.GZIP))
    with broker.client(timeout=60) as client, broker.client() as other:
        client.create_topic("old", 2)
        sent = []
        for _ in range(5):
            sent.append((client.send_produce("old", large, version=2), 2))
            sent.append((client.send_produce("old", batch([b"x"], ts=1), version=9), 9))
        assert other.call("ApiVersions", 0)["ErrorCode"] == 0
        rows = [client.answer("Produce", version, number)["Responses"][0] for number, version in sent]
        offsets = [row["PartitionResponses"][0]["BaseOffset"] for row in rows]
        assert offsets == [at for pair in range(5) for at in (pair * 8001, pair * 8001 + 8000)]
        assert client.end_offset("old") == 5 * 8001
