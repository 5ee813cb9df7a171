"""The connection to another broker, against a peer that the test plays."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pybroker.protocol.codec import encode_bytes
from pybroker.protocol.connection import BrokerConnection
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from pybroker.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from pybroker.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from pybroker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from pybroker.protocol.schema import Message

Frame = tuple[int, int, int, bytes]  # API key, version, correlation id, what comes behind them


class Peer:
    """Takes connections; what it answers, `answer` says: bytes to send for a frame, or None to close."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.connections = 0
        self.answer: Callable[[Frame], bytes | None] = lambda frame: reply(frame[2], HeartbeatResponse(), 0)
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                body = await reader.readexactly(size)
                frame: Frame = (*struct.unpack_from(">hhi", body), body[8:])
                self.frames.append(frame)
                answer = self.answer(frame)
                if answer is None:
                    return
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


def reply(correlation_id: int, response: Message, version: int) -> bytes:
    tags = b"\0" if version in response.FLEXIBLE and response.API_KEY != 18 else b""
    body = struct.pack(">i", correlation_id) + tags + encode_bytes(response, version)
    return struct.pack(">i", len(body)) + body


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture
async def connect(peer: Peer) -> AsyncIterator[Callable[..., BrokerConnection]]:
    made: list[BrokerConnection] = []

    def connected(**options: Any) -> BrokerConnection:
        options = {"backoff_ms": (1, 5)} | options
        made.append(BrokerConnection("127.0.0.1", peer.port, "me", asyncio.get_running_loop(), **options))
        return made[-1]

    yield connected
    for each in made:
        each.close()


Connect = Callable[..., BrokerConnection]


async def test_headers_of_each_kind(peer: Peer, connect: Connect) -> None:
    connection = connect()
    request, version = HeartbeatRequest(), 0
    peer.answer = lambda frame: reply(frame[2], HeartbeatResponse(error_code=25), version)
    for version, header in ((0, b"\0\2me"), (4, b"\0\2me\0")):
        assert (await connection.send(request, version)).error_code == 25
        assert peer.frames[-1][:2] == (12, version)
        assert peer.frames[-1][3] == header + encode_bytes(request, version)
    peer.answer = lambda frame: reply(frame[2], ControlledShutdownResponse(error_code=41), 0)
    assert (await connection.send(ControlledShutdownRequest(broker_id=3), 0)).error_code == 41
    assert peer.frames[-1][3] == b"\0\0\0\3", "version 0 has no client id"
    assert peer.connections == 1


async def test_answers_find_their_requests_when_many_are_in_flight(peer: Peer, connect: Connect) -> None:
    peer.answer = lambda frame: reply(frame[2], HeartbeatResponse(throttle_time_ms=frame[2]), 4)
    connection = connect()
    answers = await asyncio.gather(*[connection.send(HeartbeatRequest(), 4) for _ in range(50)])
    assert [answer.throttle_time_ms for answer in answers] == list(range(1, 51))


async def test_no_more_in_flight_than_allowed(peer: Peer, connect: Connect) -> None:
    peer.answer = lambda frame: b""
    connection = connect(max_in_flight=2)
    waiting = [asyncio.ensure_future(connection.send(HeartbeatRequest(), 4)) for _ in range(4)]
    while len(peer.frames) < 2:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert len(peer.frames) == 2
    connection.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, ConnectionError) for result in results)


@pytest.mark.parametrize("size", [10, 40_000, 70_000, 3_000_000])
async def test_records_are_writable_views(peer: Peer, connect: Connect, size: int) -> None:
    def fetched(frame: Frame) -> bytes:
        partition = PartitionData(partition_index=0, high_watermark=7, records=bytes([frame[2] % 256]) * size)
        return reply(frame[2], FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])]), 12)

    peer.answer = fetched
    connection = connect()
    answers = await asyncio.gather(*[connection.send(FetchRequest(), 12) for _ in range(5)])
    for number, answer in enumerate(answers, 1):
        records = answer.responses[0].partitions[0].records
        assert isinstance(records, memoryview) and not records.readonly
        assert records == bytes([number]) * size


async def test_it_connects_again(peer: Peer, connect: Connect) -> None:
    connection = connect()
    good, peer.answer = peer.answer, lambda frame: None
    with pytest.raises(ConnectionError):
        await connection.send(HeartbeatRequest(), 0)
    assert not connection.connected
    peer.answer = good
    await connection.send(HeartbeatRequest(), 0)
    assert peer.connections == 2


async def test_nobody_listens_and_then_somebody_does(peer: Peer, connect: Connect) -> None:
    await peer.stop()
    connection = connect()
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await connection.send(HeartbeatRequest(), 0)
    await peer.start(peer.port)
    await connection.send(HeartbeatRequest(), 0)


async def test_pauses_between_attempts_grow(peer: Peer, connect: Connect) -> None:
    await peer.stop()
    connection = connect(backoff_ms=(20, 60))
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(5):  # at once, then after about 20, 40, 60, 60 ms
        with pytest.raises(ConnectionRefusedError):
            await connection.send(HeartbeatRequest(), 0)
    assert loop.time() - began > 0.8 * 0.18


async def test_no_answer_in_time_ends_the_connection(peer: Peer, connect: Connect) -> None:
    good, peer.answer = peer.answer, lambda frame: b""
    connection = connect(request_timeout_ms=30)
    with pytest.raises(TimeoutError):
        await connection.send(HeartbeatRequest(), 0)
    peer.answer = good
    await connection.send(HeartbeatRequest(), 0)
    assert peer.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        lambda frame: reply(frame[2] + 1, HeartbeatResponse(), 0),
        lambda frame: struct.pack(">ii", 4, frame[2]),
        lambda frame: struct.pack(">i", -1),
    ],
    ids=["of another request", "cut short", "of a negative size"],
)
async def test_what_is_no_answer_ends_the_connection(
    peer: Peer, connect: Connect, answer: Callable[[Frame], bytes]
) -> None:
    peer.answer = answer
    with pytest.raises(ConnectionResetError):
        await connect().send(HeartbeatRequest(), 0)


async def test_one_who_gives_up_does_not_disturb_the_others(peer: Peer, connect: Connect) -> None:
    held: list[Frame] = []
    peer.answer = lambda frame: held.append(frame) or b""  # type: ignore[func-returns-value]
    connection = connect()
    first = asyncio.ensure_future(connection.send(HeartbeatRequest(), 0))
    while not held:
        await asyncio.sleep(0.001)
    first.cancel()
    peer.answer = lambda frame: reply(held[0][2], HeartbeatResponse(), 0) + reply(frame[2], HeartbeatResponse(), 0)
    assert (await connection.send(HeartbeatRequest(), 0)).error_code == 0
    assert peer.connections == 1


async def test_versions_are_asked_once_a_connection(peer: Peer, connect: Connect) -> None:
    keys = [ApiVersion(api_key=56, min_version=0, max_version=1), ApiVersion(api_key=1, min_version=4, max_version=9)]
    peer.answer = lambda frame: reply(frame[2], ApiVersionsResponse(api_keys=keys), 4)
    connection = connect()
    assert await connection.highest_version(56, 3) == 1
    assert await connection.highest_version(56, 0) == 0
    for key, highest in ((67, 0), (1, 3)):
        with pytest.raises(KafkaError) as refused:
            await connection.highest_version(key, highest)
        assert refused.value.code == Errors.UNSUPPORTED_VERSION
    assert len(peer.frames) == 1


async def test_closed_for_good(peer: Peer, connect: Connect) -> None:
    connection = connect()
    await connection.send(HeartbeatRequest(), 0)
    connection.close()
    with pytest.raises(ConnectionAbortedError):
        await connection.send(HeartbeatRequest(), 0)
