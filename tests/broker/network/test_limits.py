"""How many connections, how fast, and for how long without a word."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pybroker.broker.network.limits import ConnectionLimits
from pybroker.broker.network.settings import NetworkSettings, parse_overrides
from pybroker.config import BrokerConfig, Endpoint
from pybroker.protocol.clock import ManualClock
from tests.broker.network.harness import Harness, metadata_frame, until


async def test_idle_connections_are_closed_and_busy_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch, connections_max_idle_ms=200) as harness:
        silent, once, busy = [await harness.connect() for _ in range(3)]
        await once.call(metadata_frame(1))
        loop = asyncio.get_running_loop()
        started = loop.time()
        while len(harness.connections) > 1:
            await busy.call(metadata_frame(1))
            await asyncio.sleep(0.01)
            assert loop.time() - started < 10
        assert loop.time() - started > 0.15
        assert await silent.is_closed() and await once.is_closed()
        await busy.call(metadata_frame(2))
        assert await busy.is_closed()


async def test_per_address_limit_refuses_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with Harness(monkeypatch, max_connections_per_ip=2) as harness:
        first, second = await harness.connect(), await harness.connect()
        await first.call(metadata_frame(1))
        await second.call(metadata_frame(1))
        third = await harness.connect()
        assert await third.is_closed() and "configured maximum of 2 connections" in caplog.text
        first.close()
        await until(lambda: len(harness.connections) == 1)
        assert await (await harness.connect()).call(metadata_frame(1))
        harness.settings.max_connections_per_ip_overrides = {"localhost": 3}
        harness.server.reconfigure()
        assert await (await harness.connect()).call(metadata_frame(1))


async def test_over_max_connections_accepting_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch, max_connections=2) as harness:
        first, _, third = [await harness.connect() for _ in range(3)]
        third.send(metadata_frame(1))
        await until(lambda: len(harness.connections) == 2)
        await asyncio.sleep(0.02)
        assert len(harness.connections) == 2
        first.close()
        assert await third.correlation_id() == 1


async def test_the_listener_between_brokers_pushes_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch, max_connections=2, inter_broker_listener="INTERNAL") as harness:
        (internal,) = harness.server.bind([Endpoint("INTERNAL", "127.0.0.1", 0, "PLAINTEXT")])
        harness.server._acceptors[-1].start()
        old, new = await harness.connect(), await harness.connect()
        await old.call(metadata_frame(1))
        await new.call(metadata_frame(1))
        reader, writer = await asyncio.open_connection("127.0.0.1", internal.port)
        writer.write(metadata_frame(1))
        assert await asyncio.wait_for(reader.readexactly(4), 5)
        assert await old.is_closed()
        assert await new.call(metadata_frame(2))
        writer.close()


async def test_creation_rate_slows_accepting_down(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch, max_connection_creation_rate=1) as harness:
        clients = [await harness.connect() for _ in range(13)]
        for client in clients:
            client.send(metadata_frame(1))
        await until(lambda: len(harness.connections) >= 10)
        assert len(harness.connections) < 13, "which takes three seconds"
        for client in clients:
            assert await client.correlation_id() == 1


async def test_out_of_file_descriptors_accepting_pauses_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = socket.socket.accept
    failures = [OSError(24, "Too many open files")]

    def accept(self: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return real(self)

    async with Harness(monkeypatch) as harness:
        monkeypatch.setattr(socket.socket, "accept", accept)
        assert await (await harness.connect()).call(metadata_frame(1))
        assert "Too many open files" in caplog.text


def test_creation_rate_of_one_listener() -> None:
    clock = ManualClock()
    limits = ConnectionLimits(NetworkSettings(listener_creation_rate={"A": 1}), clock)
    for _ in range(10):
        assert limits.rate_wait_ms("A") == 0
        limits.opened("A", "1.2.3.4")
    assert limits.rate_wait_ms("A") == 1000 and limits.rate_wait_ms("B") == 0
    clock.advance(1000)
    assert limits.rate_wait_ms("A") == 0


def test_limit_of_one_listener_and_counts() -> None:
    limits = ConnectionLimits(NetworkSettings(listener_max_connections={"A": 1}), ManualClock())
    assert not limits.full("A")
    limits.opened("A", "1.2.3.4")
    assert limits.full("A") and not limits.full("B")
    woken: list[int] = []
    limits.wait_for_room(lambda: woken.append(1))
    limits.closed("A", "1.2.3.4")
    assert woken and not limits.full("A") and limits.total == 0 and not limits.by_address


def test_overrides() -> None:
    assert parse_overrides("host:200, 127.0.0.1:9,[::1]:3,") == {"host": 200, "127.0.0.1": 9, "::1": 3}


def test_settings_from_the_configuration() -> None:
    settings = NetworkSettings.of(BrokerConfig.of({}))
    assert settings.socket_request_max_bytes == 104857600 and settings.connections_max_idle_ms == 600000
    assert settings.socket_send_buffer_bytes == -1 and settings.max_queued_bytes >= 64 << 20
    settings.update(
        BrokerConfig.of(
            {
                "socket.send.buffer.bytes": "204800",
                "queued.max.request.bytes": "1000000",
                "listener.name.plaintext.max.connections": "7",
                "max.connections.per.ip.overrides": "127.0.0.1:5",
            }
        )
    )
    assert settings.socket_send_buffer_bytes == 204800 and settings.max_queued_bytes == 1000000
    assert settings.listener_max_connections == {"PLAINTEXT": 7}
    assert settings.max_connections_per_ip_overrides == {"127.0.0.1": 5}
