"""Answers to peers that read slowly or not at all, from memory and from files."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from pybroker.broker.context import EncodedResponse
from pybroker.broker.network.request_channel import UNSENT_MAX
from pybroker.broker.network.send_queue import SendQueue
from pybroker.broker.network.sendfile import SendFile, default_sendfile, linux_sendfile, portable_sendfile
from pybroker.storage.files import FileSlice, OpenFile, PageCache
from tests.broker.network.harness import Harness, metadata_frame, until

both_sendfiles = pytest.mark.parametrize("sendfile", [default_sendfile, portable_sendfile])


def make_file(tmp_path: Path, size: int) -> tuple[OpenFile, bytes]:
    content = os.urandom(size)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(content)
    return OpenFile(path, PageCache()), content


def sliced(file: OpenFile, position: int, length: int) -> Any:
    return lambda context, request: EncodedResponse([b"head", FileSlice(file, position, length), b"tail"])


async def test_a_peer_that_does_not_read_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"m" * 10_000
    async with Harness(monkeypatch) as harness:
        harness.handlers["metadata"] = lambda context, request: EncodedResponse([body])
        client = await harness.connect(receive_buffer=4096)
        client.send(b"".join(metadata_frame(n) for n in range(3000)))
        connection = await harness.connection()
        await until(lambda: connection.out.size > 0)
        await asyncio.sleep(0.05)
        assert connection.out.size <= UNSENT_MAX + 2 * len(body)
        assert len(harness.contexts) < 3000
        for n in range(3000):
            answer = await client.answer()
            assert int.from_bytes(answer[:4], "big") == n and answer[4:] == body
        assert not connection.out and connection.out.size == 0


@both_sendfiles
async def test_file_slices(sendfile: SendFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, content = make_file(tmp_path, 9_000_000)
    async with Harness(monkeypatch, sendfile=sendfile) as harness:
        client = await harness.connect()
        for position, length in ((0, 9_000_000), (5, 1), (1000, 0), (4_000_000, 3_000_001)):
            harness.handlers["metadata"] = sliced(file, position, length)
            client.send(metadata_frame(1) + metadata_frame(2))
            for n in (1, 2):
                answer = await client.answer()
                assert answer[:4] == n.to_bytes(4, "big")
                assert answer[4:] == b"head" + content[position : position + length] + b"tail"
    assert file._references == 1
    file.release()


@both_sendfiles
async def test_a_stalled_reader_whose_file_is_deleted(
    sendfile: SendFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, content = make_file(tmp_path, 30_000_000)
    async with Harness(monkeypatch, sendfile=sendfile) as harness:
        harness.handlers["metadata"] = sliced(file, 0, len(content))
        client, gone = await harness.connect(receive_buffer=4096), await harness.connect(receive_buffer=4096)
        client.send(metadata_frame(1))
        gone.send(metadata_frame(1))
        await until(lambda: file._references == 3)
        file.path.unlink()
        file.release()
        gone.reset()
        await until(lambda: file._references == 1)
        answer = await client.answer()
        assert answer[4:] == b"head" + content + b"tail"
        await until(lambda: file.fd == -1)


@both_sendfiles
async def test_a_file_cut_below_a_slice_closes_the_connection(
    sendfile: SendFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, content = make_file(tmp_path, 30_000_000)
    async with Harness(monkeypatch, sendfile=sendfile) as harness:
        harness.handlers["metadata"] = sliced(file, 0, len(content))
        short, cut = await harness.connect(receive_buffer=4096), await harness.connect()
        short.send(metadata_frame(1))
        await until(lambda: file._references == 2)
        file.limit = 20_000_000  # as the log says when it truncates
        assert await short.is_closed()
        assert "truncated below a slice" in caplog.text
        file.limit = 1 << 62
        os.truncate(file.path, 20_000_000)  # and as a file may turn out without being told
        cut.send(metadata_frame(1))
        assert await cut.is_closed()
        assert "ended before the slice" in caplog.text
        assert file._references == 1
        harness.handlers["metadata"] = sliced(file, 0, 100)
        client = await harness.connect()
        assert (await client.call(metadata_frame(1)))[8:-4] == content[:100]
    file.release()


def test_linux_sendfile_falls_back_where_the_file_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    file, content = make_file(tmp_path, 1000)
    monkeypatch.setattr(os, "sendfile", refuse)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert linux_sendfile(ours, file.fd, 100, 900) == 900
        assert theirs.recv(2000) == content[100:]
    file.release()


def test_a_queue_sends_all_parts_in_order_whatever_the_socket_takes(tmp_path: Path) -> None:
    file, _ = make_file(tmp_path, 100_000)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    queue = SendQueue(default_sendfile)
    parts: list[Any] = [b"a" * 70_000, b"", memoryview(b"b" * 5), bytearray(b"c" * 3000)]
    parts += [FileSlice(file, 10, 50_000), b"", FileSlice(file, 0, 0), b"d", FileSlice(file, 99_999, 1), b""]
    expected = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)
    expected += b"e" * 600
    got = b""
    with ours, theirs:
        queue.add(parts)
        queue.add([b"e"] * 600)
        assert queue.size == len(expected)
        done = False
        while not done:
            done = queue.send(ours)
            while len(got) < len(expected):
                try:
                    got += theirs.recv(1 << 16, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
        while len(got) < len(expected):
            got += theirs.recv(1 << 16)
    assert got == expected and not queue and queue.size == 0
    assert file._references == 1
    file.release()
