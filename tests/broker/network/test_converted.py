"""Answers whose records are converted while they are sent: order, slow peers, failures, memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pybroker.broker.context import EncodedResponse
from pybroker.broker.conversion import ConvertedRecords
from pybroker.protocol.records.down_convert import DownConversion
from pybroker.protocol.records.record import Record, build_batch
from pybroker.protocol.work import Workshop, finish
from pybroker.storage.files import FileSlice, OpenFile, PageCache
from tests.broker.network.harness import Harness, metadata_frame, until

VALUE = os.urandom(2000)


class Converting:
    """A log file of batches, and a handler that answers with all of it converted down."""

    def __init__(self, path: Path, batches: int) -> None:
        log = b"".join(
            build_batch([Record(base * 50 + at, 1, b"k", VALUE) for at in range(50)]) for base in range(batches)
        )
        path.write_bytes(log)
        self.file = OpenFile(path, PageCache())
        self.size = len(log)
        self.threads = ThreadPoolExecutor(2)
        self.workshop = Workshop(self.threads)
        self.log = log

    def conversion(self, source: Any) -> DownConversion:
        return DownConversion(source, self.size, 1)

    async def handle(self, context: Any, request: Any) -> EncodedResponse:
        piece = FileSlice(self.file, 0, self.size)
        conversion = self.conversion(piece.read_at)
        await self.workshop.do(conversion.begin())
        return EncodedResponse([b"head", ConvertedRecords(piece, conversion, self.workshop), b"tail"])

    def expected(self) -> bytes:
        conversion = self.conversion(lambda at, length: self.log[at : at + length])
        finish(conversion.begin())
        converted = b""
        while conversion.left:
            converted += finish(conversion.chunk())
        return b"head" + converted + b"tail"

    @property
    def slices(self) -> int:
        return self.file._references - 1


@pytest.fixture
def converting(tmp_path: Path) -> Iterator[Converting]:
    made = Converting(tmp_path / "00000000000000000000.log", 60)
    yield made
    made.threads.shutdown()
    assert made.slices == 0
    made.file.release()


async def test_answers_in_order_for_fast_and_slow_peers(
    converting: Converting, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = converting.expected()
    async with Harness(monkeypatch) as harness:
        harness.handlers["metadata"] = converting.handle
        for receive_buffer in (None, 4096):
            client = await harness.connect(receive_buffer=receive_buffer)
            client.send(metadata_frame(1) + metadata_frame(2))
            for number in (1, 2):
                answer = await client.answer()
                assert answer[:4] == number.to_bytes(4, "big")
                assert answer[4:] == expected
        await until(lambda: converting.slices == 0)


async def test_one_chunk_is_held_for_a_peer_that_does_not_read(
    converting: Converting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Harness(monkeypatch) as harness:
        harness.handlers["metadata"] = converting.handle
        client = await harness.connect(receive_buffer=4096)
        client.send(metadata_frame(1))
        connection = await harness.connection()
        await until(lambda: len(connection.out.parts) > 0)
        size = -1
        while size != connection.out.size:  # until nothing moves any more
            size = connection.out.size
            await asyncio.sleep(0.05)
        part = next(each for each in connection.out.parts if isinstance(each, ConvertedRecords))
        assert 0 < len(part.chunk) < converting.size / 10
        assert connection.out.awaited is None
        client.reset()
        await until(lambda: converting.slices == 0)


async def test_a_peer_that_goes_while_a_chunk_is_made(converting: Converting, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        harness.handlers["metadata"] = converting.handle
        client = await harness.connect()
        client.send(metadata_frame(1))
        connection = await harness.connection()
        await until(lambda: connection.out.awaited is not None)
        connection.close()
        assert await client.is_closed()
        await until(lambda: converting.slices == 0)


async def test_a_chunk_that_cannot_be_made_closes_the_connection(
    converting: Converting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Harness(monkeypatch) as harness:
        harness.handlers["metadata"] = converting.handle
        client = await harness.connect(receive_buffer=4096)
        client.send(metadata_frame(1))
        await until(lambda: converting.slices == 1)
        os.truncate(converting.file.path, converting.size // 2)
        assert await client.is_closed()
        assert "can't be converted" in caplog.text
        await until(lambda: converting.slices == 0)
