from __future__ import annotations

import asyncio
import socket

import pytest

from pybroker.config import Endpoint
from tests.broker.network.harness import Harness, metadata_frame


async def answers(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(metadata_frame(1))
    got = await asyncio.wait_for(reader.readexactly(4), 5)
    writer.close()
    return bool(got)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_bound_but_refusing_until_started(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch)
    (bound,) = harness.server.bind([Endpoint("PLAINTEXT", "127.0.0.1", 0, "PLAINTEXT")])
    assert bound.port and harness.server.endpoints == (bound,)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", bound.port)
    harness.server.start()
    assert await answers("127.0.0.1", bound.port)
    harness.server.stop_accepting()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", bound.port)
    harness.server.close()


async def test_several_listeners_names_and_both_families(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        named, everywhere = harness.server.bind(
            [Endpoint("A", "localhost", 0, "PLAINTEXT"), Endpoint("B", "", 0, "PLAINTEXT")]
        )
        harness.server.start()
        hosts = ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"]
        for endpoint in (named, everywhere):
            for host in hosts:
                assert await answers(host, endpoint.port)


async def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        with pytest.raises(OSError, match=f"cannot listen on SECOND://127.0.0.1:{harness.port}"):
            harness.server.bind([Endpoint("SECOND", "127.0.0.1", harness.port, "PLAINTEXT")])


async def test_drain_waits_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        first = harness.handlers["metadata"]
        future = asyncio.get_running_loop().create_future()
        harness.handlers["metadata"] = lambda context, request: future
        client = await harness.connect()
        client.send(metadata_frame(1))
        while not harness.contexts:
            await asyncio.sleep(0.001)
        harness.server.stop_accepting()
        asyncio.get_running_loop().call_later(0.03, future.set_result, first(None, None))
        await harness.server.drain(5)
        harness.server.close()
        assert await client.correlation_id() == 1


async def test_drain_starts_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        first = harness.handlers["metadata"]
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[object]] = []

        def ask_again(context: object, request: object) -> asyncio.Future[object]:
            futures.append(loop.create_future())
            return futures[-1]

        harness.handlers["metadata"] = ask_again
        client = await harness.connect()
        client.send(metadata_frame(1) + metadata_frame(2))  # like a consumer, who always has another request
        while not futures:
            await asyncio.sleep(0.001)
        harness.server.stop_accepting()
        loop.call_later(0.03, lambda: futures[0].set_result(first(None, None)))
        started = loop.time()
        await harness.server.drain(5)
        assert loop.time() - started < 4
        assert not harness.server.processor.connections
        assert await client.correlation_id() == 1
        assert len(futures) == 1
