"""Clients that behave badly cost bounded memory, and everyone else is served meanwhile."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import schema
from tests.support.broker import BrokerProcess, wait_until
from tests.support.records import batch
from tests.support.wire import Closed
from tests.support.witness import Witness

MB = 1 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def grown(broker: BrokerProcess, before: float) -> float:
    """MB of memory more than before."""
    return broker.memory_mb() - before


def test_frames_of_100_mb_announced_on_50_connections(broker: BrokerProcess) -> None:
    """The size field costs nothing: memory is for bytes that came."""
    with Witness(broker) as witness, ExitStack() as stack:
        witness.check()
        before = broker.memory_mb()
        for _ in range(50):
            client = stack.enter_context(broker.client())
            client.write(struct.pack(">i", 100_000_000) + struct.pack(">hhih", 0, 7, 1, -1) + bytes(10_000))
        witness.check()
        assert grown(broker, before) < 40
        witness.check(slowest=2)


def test_unfinished_frames_have_a_budget_together(broker: BrokerProcess) -> None:
    """Half a gigabyte of frames that never end: reading stops before memory does."""
    with Witness(broker) as witness, ExitStack() as stack:
        witness.check()
        before = broker.memory_mb()
        sent = 0
        for _ in range(20):
            client = stack.enter_context(broker.client())
            client.sock.setblocking(False)
            try:
                client.sock.send(struct.pack(">i", 100_000_000) + struct.pack(">hhih", 0, 7, 1, -1))
                for _ in range(400):
                    sent += client.sock.send(bytes(64 << 10))
            except (BlockingIOError, ConnectionError):
                pass
        witness.check()
        memory = Path("/proc/meminfo").read_text().split()
        budget = int(memory[1]) / 1024 / 4  # MB; a quarter of the machine is generous
        assert grown(broker, before) < budget
        witness.check()


def test_a_reader_that_stalls(broker: BrokerProcess) -> None:
    """Fetches of all the data, none of whose answers is read."""
    with broker.client() as client:
        client.create_topic("large")
        for _ in range(64):
            assert client.produce("large", batch([bytes(1_000_000)]))["ErrorCode"] == 0
    with Witness(broker) as witness, ExitStack() as stack:
        witness.check()
        before = broker.memory_mb()
        for _ in range(30):
            stalled = stack.enter_context(broker.client())
            stalled.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(20):
                stalled.send_fetch("large", 0, max_bytes=64 * MB)
        witness.check()
        assert grown(broker, before) < 60
        witness.check(slowest=5)


def test_a_writer_that_reads_no_answers(broker: BrokerProcess) -> None:
    """Requests stop being read once their answers pile up."""
    with broker.client() as client:
        client.create_topic("t", 50)
    with Witness(broker) as witness, broker.client() as silent:
        witness.check()
        before = broker.memory_mb()
        frame = schema.encode_request("Metadata", 1, {"Topics": None})
        many = (struct.pack(">i", len(frame)) + frame) * 1000
        silent.sock.settimeout(2)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 4000:
                silent.sock.sendall(many)
                sent += 1
        assert grown(broker, before) < 60
        witness.check(slowest=5)


def test_a_thousand_idle_connections(broker: BrokerProcess) -> None:
    with Witness(broker) as witness, ExitStack() as stack:
        witness.check()
        before = broker.memory_mb()
        clients = [stack.enter_context(broker.client(timeout=30)) for _ in range(1000)]
        for client in clients:
            client.send("ApiVersions", 0)
        for client in clients:
            client.answer("ApiVersions", 0)
        assert grown(broker, before) * 1024 / 1000 < 40, "KB a connection"
        witness.check(slowest=2)
        files = broker.open_files()
        stack.close()
        wait_until(lambda: broker.open_files() < files - 990, 20, "the close of 1,000 connections")


def test_connections_that_are_reset(broker: BrokerProcess) -> None:
    """A reset in the middle of everything leaves nothing behind, not even in the event loop."""
    with Witness(broker) as witness:
        witness.check()
        files = broker.open_files()
        for number in range(300):
            client = broker.client()
            client.send("Metadata", 1, {"Topics": None})
            if number % 2:
                client.send_fetch("witness", 10**6, wait_ms=10_000)
                client.write(struct.pack(">i", 1000) + b"abc")
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        wait_until(lambda: broker.open_files() < files + 10, 20, "the close of reset connections")
        witness.check(slowest=5)


def test_garbage_closes_its_own_connection_only(broker: BrokerProcess) -> None:
    with Witness(broker) as witness:
        for garbage in (b"\x16\x03\x01\x02\x00" + bytes(600), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, bytes(64)):
            with broker.client(timeout=5) as client, pytest.raises(Closed):
                client.write(garbage)
                client.receive()
        witness.check()
    closed = [line for line in broker.log_text().splitlines() if "clos" in line.lower()]
    assert len(closed) <= 8, "one line a connection at most"
