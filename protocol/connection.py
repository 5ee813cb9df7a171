"""The one outgoing connection to another broker: requests in, their responses out, in the order of sending.

It connects when it is first needed and again after it broke, with growing pauses. Whatever keeps a response from coming
(no connection, a broken one, no answer in time, an answer that is none) is an OSError, and everything then in flight
fails with it, as the answers of one connection come in order.

Receiving costs one copy by the kernel: what is small arrives in a buffer of 64 KiB, and the rest of a large response in
memory of just its size, into which the socket is read. `Records` in a response are writable views of that memory.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pybroker import __version__
from pybroker.protocol.codec import Decoder, Encoder, decoder, encoder
from pybroker.protocol.codec_runtime import long_uvarint, read_tags
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from pybroker.protocol.schema import Message

#: Kafka's request.timeout.ms, socket.connection.setup.timeout.ms, reconnect.backoff.ms and reconnect.backoff.max.ms.
REQUEST_TIMEOUT_MS = 30_000
CONNECT_SECONDS = 10.0
BACKOFF_MS = (50, 1000)

API_VERSIONS, CONTROLLED_SHUTDOWN = 18, 7
BUFFER_SIZE = 64 << 10

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ihhi")  # size, API key, version, correlation id
_ID_LENGTH = struct.Struct(">h")

#: Takes a response, or the OSError that came in its place.
OnAnswer = Callable[[Any], None]

# What compiled decoders raise on bytes that are not the message they claim to be.
_MALFORMED = (struct.error, IndexError, ValueError, OverflowError, MemoryError)


class _Call:
    """How requests of one (class, version) are written and their responses read."""

    __slots__ = ("decode", "encode", "header_tail", "key", "tagged_answer", "version")

    def __init__(self, request_class: type[Message], version: int, client_id: bytes) -> None:
        name = request_class.__name__.removesuffix("Request") + "Response"
        response_class: type[Message] = getattr(sys.modules[request_class.__module__], name)
        self.key = request_class.API_KEY
        self.version = version
        self.encode: Encoder = encoder(request_class, version)
        self.decode: Decoder = decoder(response_class, version)
        tail = _ID_LENGTH.pack(len(client_id)) + client_id
        if self.key == CONTROLLED_SHUTDOWN and version == 0:
            tail = b""  # the one request whose header has no client id
        self.header_tail = tail + b"\0" if version in request_class.FLEXIBLE else tail
        self.tagged_answer = version in response_class.FLEXIBLE and self.key != API_VERSIONS


class _Flight:
    """A request that was sent and is not answered."""

    __slots__ = ("call", "correlation_id", "deadline", "on_answer")

    def __init__(self, call: _Call, correlation_id: int, on_answer: OnAnswer, deadline: asyncio.TimerHandle) -> None:
        self.call = call
        self.correlation_id = correlation_id
        self.on_answer = on_answer
        self.deadline = deadline


class BrokerConnection:
    """To host:port, used from one event loop. `max_in_flight` requests wait for answers at a time, more queue in order.

    `backoff_ms` is the pause after a failed attempt, and what it grows to with each further one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        loop: asyncio.AbstractEventLoop,
        *,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        max_in_flight: int = 5,
        backoff_ms: tuple[int, int] = BACKOFF_MS,
    ) -> None:
        self.host = host
        self.port = port
        self._client_id = client_id.encode()
        self._loop = loop
        self._timeout_seconds = request_timeout_ms / 1000
        self._backoff_seconds = backoff_ms[0] / 1000, backoff_ms[1] / 1000
        self._slots = asyncio.Semaphore(max_in_flight)
        self._calls: dict[tuple[type[Message], int], _Call] = {}
        self._stream: _Stream | None = None
        self._connecting: asyncio.Task[_Stream] | None = None
        self._failures = 0
        self._not_before = 0.0  # loop.time() of the next attempt
        self._closed = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def connected(self) -> bool:
        return self._stream is not None

    async def send(self, request: Message, version: int, timeout_ms: int | None = None) -> Any:
        """The response to a request. Raises OSError (TimeoutError when none came in time)."""
        call = self._call(type(request), version)
        async with self._slots:
            stream = self._stream or await self._connected()
            answer: asyncio.Future[Any] = self._loop.create_future()
            stream.send(call, request, partial(_settle, answer), timeout_ms)
            return await answer

    def ask(self, request: Message, version: int, on_answer: OnAnswer) -> None:
        """As `send`, for one that asks on when it is answered, and would feel the hops of a task: `on_answer` is called
        with the response, or the OSError in its place, where it is received; never within this call.

        It has no place among `max_in_flight`: only one such request may be out.
        """
        stream = self._stream
        if stream is not None and not stream.broken:
            stream.send(self._call(type(request), version), request, on_answer, None)
        else:
            task = self._loop.create_task(self.send(request, version), name=f"ask-{self}")
            task.add_done_callback(partial(_tell, on_answer))

    async def highest_version(self, api_key: int, highest: int) -> int:
        """The highest version that the other broker and this one (up to `highest`) know: asked once a connection.
        Raises OSError; KafkaError UNSUPPORTED_VERSION if there is none."""
        async with self._slots:
            stream = self._stream or await self._connected()
        if stream.versions is None:
            asked = ApiVersionsRequest(client_software_name="pybroker", client_software_version=__version__)
            response: ApiVersionsResponse = await self.send(asked, 4)
            if response.error_code:
                raise KafkaError(Errors(response.error_code), f"{self} does not tell its versions")
            stream.versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        lowest_there, highest_there = stream.versions.get(api_key, (0, -1))
        version = min(highest, highest_there)
        if version < lowest_there:
            raise KafkaError(Errors.UNSUPPORTED_VERSION, f"{self} does not know the API {api_key} as it is needed")
        return version

    def close(self) -> None:
        """Ends it for good; what is in flight fails."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._stream is not None:
            self._stream.fail(self._closed_error())

    def _closed_error(self) -> OSError:
        return ConnectionAbortedError(f"the connection to {self} was closed")

    def _call(self, request_class: type[Message], version: int) -> _Call:
        call = self._calls.get((request_class, version))
        if call is None:
            call = self._calls[request_class, version] = _Call(request_class, version, self._client_id)
        return call

    async def _connected(self) -> _Stream:
        if self._connecting is None:
            if self._closed:
                raise self._closed_error()
            self._connecting = self._loop.create_task(self._connect(), name=f"connect-{self}")
            self._connecting.add_done_callback(self._attempted)
        try:
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if self._closed:
                raise self._closed_error() from None
            raise

    async def _connect(self) -> _Stream:
        pause = self._not_before - self._loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        async with asyncio.timeout(CONNECT_SECONDS):
            _, stream = await self._loop.create_connection(lambda: _Stream(self), self.host, self.port)
        return stream

    def _attempted(self, attempt: asyncio.Task[_Stream]) -> None:
        self._connecting = None
        if attempt.cancelled():
            return
        if attempt.exception() is None:
            self._failures = 0
            stream = attempt.result()
            if self._closed:
                stream.fail(self._closed_error())
            elif not stream.broken:
                self._stream = stream
        else:
            self._failures += 1
            self._pause()

    def lost(self, stream: _Stream) -> None:
        """For the stream only: it is of no use any more."""
        if self._stream is stream:
            self._stream = None
            self._pause()

    def _pause(self) -> None:
        first, longest = self._backoff_seconds
        pause = min(first * 2 ** min(max(self._failures - 1, 0), 16), longest)
        self._not_before = self._loop.time() + pause * random.uniform(0.8, 1.2)


class _Stream(asyncio.BufferedProtocol):
    """One TCP connection, from its opening to its end."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.versions: dict[int, tuple[int, int]] | None = None
        self.broken = False
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self._flights: deque[_Flight] = deque()
        self._buffer = memoryview(bytearray(BUFFER_SIZE))
        self._filled = 0
        self._large: memoryview | None = None  # a response that is read into memory of its own, without its size field
        self._large_filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, call: _Call, request: Message, on_answer: OnAnswer, timeout_ms: int | None) -> None:
        """`timeout_ms` None: the connection's own. Raises OSError."""
        if self.broken or self._transport is None:
            raise ConnectionResetError(f"the connection to {self._connection} broke")
        body = call.encode(request)
        tail = call.header_tail
        self._correlation_id = number = (self._correlation_id + 1) & 0x7FFFFFFF
        size = _HEAD.size - 4 + len(tail) + sum(map(len, body))
        self._transport.writelines([_HEAD.pack(size, call.key, call.version, number) + tail, *body])
        connection = self._connection
        seconds = connection._timeout_seconds if timeout_ms is None else timeout_ms / 1000
        deadline = connection._loop.call_later(seconds, self._late, call.key)
        self._flights.append(_Flight(call, number, on_answer, deadline))

    def _late(self, api_key: int) -> None:
        self.fail(TimeoutError(f"{self._connection} did not answer a request (API {api_key}) in time"))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is not None:
            self._large_filled += nbytes
            if self._large_filled == len(self._large):
                whole, self._large = self._large, None
                self._answer(whole)
            return
        self._filled += nbytes
        self._take_frames()

    def _take_frames(self) -> None:
        view, start, end = self._buffer, 0, self._filled
        while end - start >= 4 and not self.broken:
            size = _SIZE.unpack_from(view, start)[0]
            if size < 4:
                self.fail(ConnectionResetError(f"{self._connection} sent a response of {size} bytes"))
                return
            if end - start - 4 < size:
                if size > BUFFER_SIZE // 2:
                    self._large = memoryview(bytearray(size))
                    self._large_filled = end - start - 4
                    self._large[: self._large_filled] = view[start + 4 : end]
                    start = end
                break
            self._answer(memoryview(bytearray(view[start + 4 : start + 4 + size])))
            start += 4 + size
        if start and start < end:
            view[: end - start] = bytes(view[start:end])
        self._filled = end - start

    def _answer(self, frame: memoryview) -> None:
        correlation_id = _SIZE.unpack_from(frame)[0]
        flight = self._flights.popleft() if self._flights else None
        if flight is None or flight.correlation_id != correlation_id:
            self.fail(ConnectionResetError(f"{self._connection} answered a request that was not sent"), flight)
            return
        flight.deadline.cancel()
        try:
            response = flight.call.decode(frame, _body_at(frame, flight.call.tagged_answer))[0]
        except _MALFORMED as error:
            what = f"{self._connection} answered the API {flight.call.key} with what is none: {error}"
            self.fail(ConnectionResetError(what), flight)
            return
        flight.on_answer(response)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(ConnectionResetError(f"the connection to {self._connection} broke: {exc or 'closed by the peer'}"))

    def fail(self, error: OSError, also: _Flight | None = None) -> None:
        """The end: whatever was in flight fails."""
        if self.broken:
            return
        self.broken = True
        self._connection.lost(self)
        if self._transport is not None:
            self._transport.abort()
        failed = [*self._flights, *([also] if also else ())]
        self._flights.clear()
        for flight in failed:
            flight.deadline.cancel()
            flight.on_answer(error)


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return  # nobody waits for it any more
    if isinstance(outcome, OSError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _tell(on_answer: OnAnswer, task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        on_answer(task.exception() or task.result())


def _body_at(frame: memoryview, tagged: bool) -> int:
    """Where a response's body begins: behind the correlation id and, if there are any, its header's tagged fields."""
    if not tagged:
        return 4
    count, at = long_uvarint(frame, 4)
    return read_tags(frame, at, count)[1] if count else at
