"""One client's connection: a raw non-blocking socket, what it holds of unfinished requests, what it has yet to send.

Receiving. Bytes land in the Processor's shared buffer and whole frames are handled there. What remains of a frame is
kept by the connection: a small rest goes back to the front of the shared buffer before the next read; the rest of a
large frame gets memory of its own, twice what has arrived, into which the socket is read directly.

Not reading. `muted` is a set of reasons. While there is any, nothing is read and no request is started. The reader is
taken off the loop only when it fires meanwhile, so a client that waits for its answer costs no call for that.

Closing. There is one way, `close`: it takes reader and writer off the loop before the socket goes, because uvloop would
otherwise keep a dead handle under a number that the next connection gets.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from pybroker.broker.network.send_queue import SendQueue, release

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext
    from pybroker.broker.kafka_apis import PendingAnswer
    from pybroker.broker.network.processor import Processor
    from pybroker.config import Endpoint

logger = logging.getLogger(__name__)

# Reasons not to read.
WAITING = 1  # the next request has to wait for the answer of an earlier one
UNSENT = 2  # the peer does not take its answers
THROTTLED = 4  # a quota was exceeded
NO_ROOM = 8  # queued.max.requests are being worked on
YIELDED = 16  # other connections' turn
NO_MEMORY = 32  # see MemoryBudget
ENDING = 64  # to be closed when the answers before the end are sent

SMALL = 32 << 10  # a rest up to this size is copied back before the shared buffer's next read

_SIZE = struct.Struct(">i")


class Connection:
    """Belongs to one Processor. Text form: "local address:port-peer address:port-number", as Kafka's connection id."""

    __slots__ = (
        "_large",
        "_number",
        "_peer_port",
        "_reading",
        "_recyclable",
        "_unsent_since",
        "_writing",
        "address",
        "arrived",
        "client_bytes",
        "client_id",
        "closed",
        "context",
        "held",
        "held_end",
        "held_start",
        "last_active",
        "listener",
        "muted",
        "out",
        "processor",
        "sock",
        "waiting",
        "woken",
    )

    def __init__(
        self, processor: Processor, sock: socket.socket, listener: Endpoint, peer: tuple[Any, ...], number: int
    ) -> None:
        self.processor = processor
        self.sock = sock
        self.listener = listener
        self.address: str = peer[0].removeprefix("::ffff:")
        self._peer_port = peer[1]
        self._number = number
        self.client_bytes = b""
        self.client_id = ""
        self.context: RequestContext | None = None  # used again for request after request
        self.waiting: deque[PendingAnswer | list[Any]] = deque()  # answers in order, from the first unfinished on
        self.out = SendQueue(processor.sendfile)
        self.held: memoryview | None = None  # bytes [held_start, held_end) of it are received and not handled
        self.held_start = self.held_end = 0
        self._large = 0  # size of the unfinished frame that is read directly into `held`
        self._recyclable = True
        self.muted = 0
        self.closed = False
        self._writing = False
        # perf_counter_ns: of the latest receive, of the latest wake-up, of the latest receive or send
        self.arrived = self.woken = self.last_active = perf_counter_ns()
        self._unsent_since = 0
        self._reading = True
        processor.loop.add_reader(sock.fileno(), self._readable)

    def __str__(self) -> str:
        try:
            host, port = self.sock.getsockname()[:2]
        except OSError:
            host, port = self.listener.host, self.listener.port
        return f"{host.removeprefix('::ffff:')}:{port}-{self.address}:{self._peer_port}-{self._number}"

    def set_client_id(self, raw: bytes) -> None:
        """Remember the client id of the latest request, which is nearly always that of the next."""
        self.client_bytes = raw
        self.client_id = raw.decode("utf-8", "replace")

    # -- receiving

    def _readable(self) -> None:
        if self.muted:
            self._look_without_reading()
            return
        self.arrived = self.woken = self.last_active = perf_counter_ns()
        if self._large:
            self._read_large()
            return
        processor = self.processor
        view = processor.view
        kept = self.held_end - self.held_start
        try:
            if kept:
                assert self.held is not None
                view[:kept] = self.held[self.held_start : self.held_end]
                got = self.sock.recv_into(view[kept:])
            else:
                got = self.sock.recv_into(view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not got:
            self._end_of_stream()
            return
        if kept:
            self._drop_held()
        self._handle(view, 0, kept + got)

    def _read_large(self) -> None:
        held = self.held
        assert held is not None
        if self.held_end == len(held):
            grown = min(2 * len(held), self._large)
            if not self.processor.budget.may_grow(self, grown - len(held)):
                self.muted |= NO_MEMORY
                return
            held = self._grow(grown)
        try:
            got = self.sock.recv_into(held[self.held_end :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not got:
            self._end_of_stream()
            return
        self.held_end += got
        if self.held_end == self._large:
            self._large = 0
            self.processor.budget.finished(self)
            self._handle_held()

    def _handle(self, view: memoryview, start: int, end: int) -> None:
        """Start the requests in view[start:end], send what they answered at once, keep what remains."""
        start = self.processor.channel.run(self, view, start, end)
        if self.closed:
            return
        if self.out.parts and not self.muted & UNSENT:
            self.flush()
            if self.closed:
                return
        if start < end:
            self._keep(view, start, end)

    def _handle_held(self) -> None:
        held, start, end = self.held, self.held_start, self.held_end
        assert held is not None
        self._drop_held()
        self._recyclable = True
        self.woken = perf_counter_ns()
        self._handle(held, start, end)
        if self._recyclable and self.held is None:
            self.processor.recycle(held)

    def _keep(self, view: memoryview, start: int, end: int) -> None:
        if view.obj is self.processor.buffer:
            view, start, end = memoryview(bytearray(view[start:end])), 0, end - start
        self.held, self.held_start, self.held_end = view, start, end
        self.processor.charge(len(view))
        if not self.muted and end - start > SMALL:
            self._large = 4 + _SIZE.unpack_from(view, start)[0]
            self._grow(min(2 * (end - start), self._large))

    def _grow(self, capacity: int) -> memoryview:
        """Move the held bytes to the start of a memory of `capacity`."""
        old, start, end = self.held, self.held_start, self.held_end
        assert old is not None
        new = self.processor.memory(capacity)
        new[: end - start] = old[start:end]
        self._drop_held()
        self.held, self.held_end = new, end - start
        self.processor.charge(len(new))
        return new

    def _drop_held(self) -> None:
        if self.held is not None:
            self.processor.release(len(self.held))
            self.held = None
            self.held_start = self.held_end = 0

    def give_frame(self, view: memoryview) -> int:
        """Leave the memory behind `view` to a request that keeps its frame; returns how much that is."""
        if view.obj is self.processor.buffer:
            self.processor.renew_buffer()
        self._recyclable = False
        return view.nbytes

    def _end_of_stream(self) -> None:
        """The peer sends no more; it may still be reading the answers it is owed."""
        self._stop_reading()
        self.finish()

    def _look_without_reading(self) -> None:
        """Something came while nothing is to be read: data and an orderly end can wait, a reset ends it all."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.processor.loop.remove_reader(self.sock.fileno())

    # -- reasons not to read

    def mute(self, reason: int) -> None:
        self.muted |= reason

    def unmute(self, reason: int) -> None:
        """Take a reason back; without any left, go on with what is held and with reading."""
        if not self.muted & reason or self.closed:
            return
        self.muted &= ~reason
        if self.muted:
            return
        if self.held is not None and not self._large:
            self._handle_held()
        if not self.muted and not self.closed and not self._reading:
            self._reading = True
            self.processor.loop.add_reader(self.sock.fileno(), self._readable)

    def throttle(self, ms: int) -> None:
        """Answer, but read nothing more for that long (KIP-219)."""
        if not self.muted & THROTTLED:
            self.muted |= THROTTLED
            self.processor.timer.schedule(ms, self._throttled_enough)

    def _throttled_enough(self) -> None:
        self.unmute(THROTTLED)

    def memory_came(self) -> None:
        self.unmute(NO_MEMORY)

    # -- sending

    def flush(self) -> None:
        """Send what there is; the rest when the socket takes more. Closes the connection if it is broken."""
        try:
            done = self.out.send(self.sock)
        except ConnectionError as error:
            if error.errno is None:
                logger.warning("Closing %s: %s", self, error)
            self.close()
            return
        except OSError:
            self.close()
            return
        if done:
            if self.muted & UNSENT:
                self._caught_up()
            if self.muted & ENDING:
                self._close_if_done()
            return
        if not self.muted & UNSENT:
            self.muted |= UNSENT
            self._unsent_since = perf_counter_ns()
        awaited = self.out.awaited
        self._write_when_possible(awaited is None)
        if awaited is not None:
            awaited.make(self._writable)

    def _write_when_possible(self, writing: bool) -> None:
        """Whether the loop is to tell when the socket takes more."""
        if writing == self._writing:
            return
        self._writing = writing
        if writing:
            self.processor.loop.add_writer(self.sock.fileno(), self._writable)
        else:
            self.processor.loop.remove_writer(self.sock.fileno())

    def _writable(self) -> None:
        before = self.out.size
        self.flush()
        if self.out.size != before:
            self.last_active = perf_counter_ns()

    def _caught_up(self) -> None:
        """The peer has taken all that was held back."""
        self._write_when_possible(False)
        self.processor.send_ns[(perf_counter_ns() - self._unsent_since).bit_length()] += 1
        self.unmute(UNSENT)

    def answered(self) -> None:
        """An answer became ready: send what may leave, and go on if nothing else stands against it."""
        self.last_active = perf_counter_ns()
        if self.out.parts and not self.muted & UNSENT:
            self.flush()
        if self.closed:
            return
        if self.muted & ENDING:
            self._close_if_done()
        self.unmute(WAITING)

    # -- the end

    def finish(self) -> None:
        """Start nothing more, and close when the answers that are owed have been sent."""
        self.muted |= ENDING
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.waiting:
            return
        if not self.out.parts:
            self.close()
        elif not self.muted & UNSENT:
            self.flush()

    def close(self) -> None:
        """Close now; what was not sent is lost. Requests under way finish, but nobody gets their answers."""
        if self.closed:
            return
        self.closed = True
        loop, fd = self.processor.loop, self.sock.fileno()
        loop.remove_reader(fd)
        loop.remove_writer(fd)
        self.sock.close()
        self.out.close()
        for answer in self.waiting:
            release(answer if isinstance(answer, list) else answer.parts or ())
        self.waiting.clear()
        self._drop_held()
        self.context = None  # the two point at each other
        self.processor.forget(self)
