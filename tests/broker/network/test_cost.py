"""What a request may cost: system calls, garbage. Times are bench/'s business."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from typing import Any

import pytest

from pybroker.broker.network import request_channel
from pybroker.config import Endpoint
from pybroker.protocol.messages.fetch import FetchResponse
from tests.broker.network.harness import Harness, fetch_frame, has, metadata_frame, produce_frame, until

CALLS: Counter[str] = Counter()


class CountingSocket(socket.socket):
    """Counts what the server does with its end."""

    def recv_into(self, *arguments: Any) -> int:
        CALLS["recv"] += 1
        return super().recv_into(*arguments)

    def send(self, *arguments: Any) -> int:
        CALLS["send"] += 1
        return super().send(*arguments)

    def sendmsg(self, *arguments: Any) -> int:
        CALLS["send"] += 1
        return super().sendmsg(*arguments)


async def test_one_receive_and_one_send_a_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_channel, "NS_A_WAKE_UP", 1 << 60)  # on a busy machine 40 requests may take two turns
    async with Harness(monkeypatch) as harness:
        ours, theirs = socket.socketpair()
        counting = CountingSocket(fileno=ours.detach())
        counting.setblocking(False)
        listener = Endpoint("PLAINTEXT", "127.0.0.1", 0, "PLAINTEXT")
        connection = harness.server.processor.adopt(counting, listener, ("127.0.0.1", 1), lambda: None)
        for burst in (1, 5, 40):
            CALLS.clear()
            theirs.sendall(b"".join(produce_frame(n, b"x" * 60) for n in range(burst)))
            before = len(harness.contexts)
            await until(has(harness.contexts, before + burst))
            assert CALLS == {"recv": 1, "send": 1}
            assert theirs.recv(1 << 20)
        CALLS.clear()
        theirs.sendall(produce_frame(1, b"x" * 65_000))
        await until(lambda: CALLS["send"] == 1)
        assert CALLS["recv"] <= 2 and CALLS["send"] == 1
        connection.close()
        theirs.close()


@pytest.mark.parametrize("kind", ["at once", "waiting", "errors", "connections"])
async def test_requests_leave_no_cycles_for_the_collector(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[asyncio.Future[Any]] = []

    def park(context: Any, request: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        waiting.append(future)
        asyncio.get_running_loop().call_soon(lambda: waiting.pop().set_result(FetchResponse()))
        return future

    def fail(context: Any, request: Any) -> Any:
        raise ValueError("no")

    async with Harness(monkeypatch) as harness:
        if kind == "waiting":
            harness.handlers["fetch"] = park
        elif kind == "errors":
            harness.handlers["fetch"] = fail
        client = await harness.connect()

        async def go(count: int) -> None:
            nonlocal client
            for _ in range(count // 100):
                if kind == "at once":
                    client.send(b"".join(metadata_frame(n) + produce_frame(n) for n in range(50)))
                elif kind in ("waiting", "errors"):
                    client.send(b"".join(fetch_frame(n, 7) for n in range(100)))
                else:
                    await client.call(metadata_frame(1))
                    client.close()
                    client = await harness.connect()
                    continue
                for _ in range(100):
                    await client.answer()

        await go(200)
        gc.collect()
        gc.disable()
        try:
            await go(10_000)
            left = gc.collect()
        finally:
            gc.enable()

        assert left < 100, left
