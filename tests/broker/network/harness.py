"""A SocketServer with handlers made up by the test, and clients on the same loop."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
import types
from collections.abc import Callable, Sized
from typing import Any

import pytest

from pybroker.broker.kafka_apis import KafkaApis
from pybroker.broker.network.connection import Connection
from pybroker.broker.network.sendfile import SendFile, default_sendfile
from pybroker.broker.network.settings import NetworkSettings
from pybroker.broker.network.socket_server import SocketServer
from pybroker.config import Endpoint
from pybroker.protocol import codec
from pybroker.protocol.clock import SystemClock
from pybroker.protocol.messages.fetch import FetchRequest, FetchResponse
from pybroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from pybroker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pybroker.protocol.timer import Timer

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18


def frame(api_key: int, version: int, correlation_id: int, body: bytes, client_id: bytes | None = b"test") -> bytes:
    """A whole request frame with a version 1 header."""
    length = -1 if client_id is None else len(client_id)
    header = struct.pack(">hhih", api_key, version, correlation_id, length) + (client_id or b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def message_frame(message: Any, version: int, correlation_id: int) -> bytes:
    """The frame of a request message, with the header that its version has."""
    tags = b"\0" if version in message.FLEXIBLE else b""
    return frame(message.API_KEY, version, correlation_id, tags + codec.encode_bytes(message, version))


def produce_frame(correlation_id: int, records: bytes = b"r", *, acks: int = 1, partition: int = 0) -> bytes:
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=records)])
    return message_frame(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data]), 7, correlation_id)


def metadata_frame(correlation_id: int, version: int = 1) -> bytes:
    return message_frame(MetadataRequest(topics=[]), version, correlation_id)


def fetch_frame(correlation_id: int, version: int = 4) -> bytes:
    return message_frame(FetchRequest(max_wait_ms=500, max_bytes=1000), version, correlation_id)


def api_versions_frame(correlation_id: int = 7) -> bytes:
    return frame(API_VERSIONS, 0, correlation_id, b"")


class Client:
    """A client connection on the test's loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, timeout: float = 10) -> bytes:
        """One answer without its size field."""
        (size,) = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), timeout))
        return await asyncio.wait_for(self.reader.readexactly(size), timeout)

    async def correlation_id(self) -> int:
        return int.from_bytes((await self.answer())[:4], "big", signed=True)

    async def is_closed(self, timeout: float = 10) -> bool:
        """Waits until the server has closed; what it still sent is dropped."""
        try:
            while await asyncio.wait_for(self.reader.read(65536), timeout):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    async def call(self, data: bytes) -> bytes:
        self.send(data)
        return await self.answer()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close with a reset instead of an orderly end."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Harness:
    """`handlers[module name]` is what answers; by default Produce, Fetch and Metadata answer at once, empty."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sendfile: SendFile = default_sendfile, **settings: Any):
        self.handlers: dict[str, Callable[[Any, Any], Any]] = {
            "produce": self.produce,
            "fetch": lambda context, request: FetchResponse(),
            "metadata": lambda context, request: MetadataResponse(),
        }
        self.contexts: list[tuple[int, int, int, str | None]] = []
        self.records: list[bytes] = []
        for name in self.handlers:
            module = types.ModuleType(f"pybroker.broker.apis.{name}")
            module.handle = self._handler(name)  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, module.__name__, module)
        loop = asyncio.get_running_loop()
        self.timer = Timer(SystemClock(), loop)
        self.settings = NetworkSettings(**settings)
        self.apis = KafkaApis(types.SimpleNamespace(foreign_brokers=types.SimpleNamespace(none=True)))
        self.server = SocketServer(loop, SystemClock(), self.timer, self.settings, self.apis, sendfile=sendfile)
        self.clients: list[Client] = []
        self.port = 0

    async def __aenter__(self) -> Harness:
        (bound,) = self.server.bind([Endpoint("PLAINTEXT", "127.0.0.1", 0, "PLAINTEXT")])
        self.port = bound.port
        self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()
        self.server.close()
        self.timer.close()

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        # A small limit, so that a test that doesn't read fills the socket and not the stream's buffer.
        client = Client(*await asyncio.open_connection(sock=sock, limit=1 << 16))
        self.clients.append(client)
        return client

    @property
    def connections(self) -> list[Connection]:
        return list(self.server.processor.connections)

    async def connection(self) -> Connection:
        """The server's end of the only connection."""
        await until(lambda: len(self.connections) == 1)
        return self.connections[0]

    def produce(self, context: Any, request: ProduceRequest) -> ProduceResponse | None:
        for topic in request.topic_data:
            self.records += [bytes(partition.records or b"") for partition in topic.partition_data]
        if request.acks == 0:
            return None
        return ProduceResponse(
            responses=[TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse(base_offset=1)])]
        )

    def _handler(self, name: str) -> Callable[[Any, Any], Any]:
        def handle(context: Any, request: Any) -> Any:
            self.contexts.append((context.api_key, context.api_version, context.correlation_id, context.client_id))
            return self.handlers[name](context, request)

        return handle


def has(items: Sized, count: int) -> Callable[[], bool]:
    """A condition for `until`: at least so many."""
    return lambda: len(items) >= count


async def until(condition: Callable[[], bool], timeout: float = 10) -> None:
    """Wait for a condition, and fail when it doesn't come true."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        await asyncio.sleep(0.002)
