"""Unfinished frames, and the memory that they may take."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from pybroker.broker.network import memory
from pybroker.broker.network.connection import SMALL
from pybroker.broker.network.processor import BUFFER_BYTES, TIGHT_BYTES
from tests.broker.network.harness import Harness, metadata_frame, produce_frame, until


def test_a_small_rest_leaves_room_in_the_smallest_receive_buffer() -> None:
    assert SMALL < TIGHT_BYTES < BUFFER_BYTES


async def test_frames_of_all_sizes_in_pieces_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(3)
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        sizes = [random.choice((0, 1, 100, 5_000, SMALL, 70_000, BUFFER_BYTES, 3_000_000)) for _ in range(40)]
        contents = [random.randbytes(size) for size in sizes]
        stream = b"".join(produce_frame(n, content) for n, content in enumerate(contents))
        reading = asyncio.ensure_future(_answers(client, len(contents)))
        at = 0
        while at < len(stream):
            step = random.choice((1, 3, 50, 1_000, 40_000, 600_000))
            client.send(stream[at : at + step])
            at += step
            await asyncio.sleep(0)
        assert await reading == list(range(len(contents)))
        assert harness.records == contents
        assert harness.server.processor.budget.used == 0


async def _answers(client: object, count: int) -> list[int]:
    return [await client.correlation_id() for _ in range(count)]  # type: ignore[attr-defined]


async def test_memory_grows_with_what_arrives_and_never_from_the_size_field(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        budget = harness.server.processor.budget
        clients = [await harness.connect() for _ in range(50)]
        for client in clients:
            client.send(struct.pack(">i", 100_000_000) + b"\0" * 10)
        await until(lambda: all(connection.held is not None for connection in harness.connections))
        assert budget.used <= 50 * 1024
        for client in clients:
            client.send(b"\0" * 100_000)
        await until(lambda: budget.used >= 50 * 100_000)
        assert budget.used <= 50 * 4 * 100_014
        assert await (await harness.connect()).call(metadata_frame(1))
        for client in clients:
            client.close()
        await until(lambda: budget.used == 0)


async def test_large_frames_take_turns_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 20
    async with Harness(monkeypatch, max_queued_bytes=limit) as harness:
        budget = harness.server.processor.budget
        size = 3_000_000
        most = 0
        clients = [await harness.connect() for _ in range(8)]
        for n, client in enumerate(clients):
            client.send(produce_frame(n, bytes([n]) * size))
        witness = await harness.connect()
        for n in range(2000):
            assert await witness.call(metadata_frame(n))
            most = max(most, budget.used)
            if len(harness.records) == len(clients):
                break
        assert sorted(record[0] for record in harness.records) == list(range(8))
        for n, client in enumerate(clients):
            assert await client.correlation_id() == n
        assert most <= limit + size + len(clients) * 2 * BUFFER_BYTES
        assert budget.used == 0


async def test_one_that_stalls_while_others_wait_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "_STALLED_S", 0.1)
    async with Harness(monkeypatch, max_queued_bytes=200_000) as harness:
        stalled, good = await harness.connect(), await harness.connect()
        head = struct.pack(">i", 50_000_000)
        stalled.send(head + b"\0" * 400_000)
        await until(lambda: harness.server.processor.budget._favoured is not None)
        good.send(produce_frame(1, b"g" * 900_000))
        assert await good.correlation_id() == 1
        assert "stopped in the middle of a request" in caplog.text and await stalled.is_closed()


async def test_pipelined_requests_that_have_to_wait_are_held_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        future = asyncio.get_running_loop().create_future()
        first = harness.handlers["metadata"]
        harness.handlers["metadata"] = lambda context, request: future
        client = await harness.connect()
        client.send(metadata_frame(0) + b"".join(produce_frame(n, b"x" * 1000) for n in range(1, 5000)))
        connection = await harness.connection()
        await until(lambda: connection.held is not None)
        await asyncio.sleep(0.02)
        assert 0 < harness.server.processor.budget.used <= BUFFER_BYTES
        harness.handlers["metadata"] = first
        future.set_result(first(None, None))
        assert await _answers(client, 5000) == list(range(5000))
        assert harness.server.processor.budget.used == 0
