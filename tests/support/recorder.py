"""What brokers say to each other, recorded by proxies: each broker advertises its proxy's port to the others.

with Recorder() as recorder:
    port = recorder.proxy(1, 9092)       # to broker 1, which listens on port 9092
    recorder.scenario = "start"
    recorder.messages                    # requests in the order of their arrival, with their answers
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.support import schema
from tests.support.broker import free_port

#: Requests whose contents are decoded; of others only the headers are.
CONTENTS = ("LeaderAndIsr", "UpdateMetadata", "StopReplica", "AlterPartition", "ControlledShutdown")


class Recorded:
    """A request and its answer, None until it comes or where it is not decoded."""

    def __init__(self, scenario: str, to: int, frame: bytes) -> None:
        key, self.version, self.correlation_id, length = struct.unpack_from(">hhih", frame)
        self.scenario, self.to = scenario, to
        self.api = schema.api_name(key)
        self.client = frame[10 : 10 + max(length, 0)].decode()
        self.request: dict[str, Any] | None = None
        self.response: dict[str, Any] | None = None
        if self.api in CONTENTS:
            _, _, self.request = schema.decode_request(frame)


class Recorder:
    """See the module. Its proxies run in a thread with a loop of their own."""

    def __init__(self) -> None:
        self.scenario = ""
        self.messages: list[Recorded] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recorder", daemon=True)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    def proxy(self, broker_id: int, target_port: int) -> int:
        """The port of a proxy to a broker."""
        port = free_port()
        asyncio.run_coroutine_threadsafe(self._listen(broker_id, port, target_port), self._loop).result(20)
        return port

    async def _listen(self, broker_id: int, port: int, target_port: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(broker_id, target_port, reader, writer)

        self._servers.append(await asyncio.start_server(serve, "127.0.0.1", port))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, broker_id: int, target_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port)
        except OSError:
            writer.transport.abort()
            return
        waiting: dict[int, Recorded] = {}

        def asked(frame: bytes) -> None:
            message = Recorded(self.scenario, broker_id, frame)
            self.messages.append(message)
            if message.request is not None:
                waiting[message.correlation_id] = message

        def answered(frame: bytes) -> None:
            message = waiting.pop(struct.unpack_from(">i", frame)[0], None)
            if message is not None:
                _, message.response = schema.decode_response(message.api, message.version, frame)

        try:
            both = (_pass_on(reader, far_writer, asked), _pass_on(far_reader, writer, answered))
            await asyncio.wait([asyncio.ensure_future(each) for each in both], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (writer, far_writer):
                each.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Callable[[bytes], None]) -> None:
    try:
        while True:
            size = await reader.readexactly(4)
            frame = await reader.readexactly(struct.unpack(">i", size)[0])
            seen(frame)
            writer.write(size + frame)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
