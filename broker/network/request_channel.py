"""Between connections and KafkaApis: which request may start when, and in which order answers leave.

A request is started in the call that received it, and answered there unless its handler returns an awaitable. On one
connection a request starts when the one before it is answered, with one exception: a Produce may be appended while
earlier Produces of the connection wait for their replicas. Their answers leave in order all the same.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING

from pybroker.broker.context import CloseConnection
from pybroker.broker.kafka_apis import KafkaApis, PendingAnswer
from pybroker.broker.network.connection import ENDING, NO_ROOM, UNSENT, WAITING, YIELDED, Connection
from pybroker.broker.network.send_queue import release
from pybroker.broker.network.settings import NetworkSettings

if TYPE_CHECKING:
    from pybroker.broker.network.memory import MemoryBudget

logger = logging.getLogger(__name__)

PRODUCE = 0
# Long polls and waits for replicas or members: they are parked and take no share of queued.max.requests.
PARKED = frozenset({PRODUCE, 1, 11, 14, 78})  # Produce, Fetch, JoinGroup, SyncGroup, ShareFetch

REQUESTS_A_WAKE_UP = 64
NS_A_WAKE_UP = 2_000_000
UNSENT_MAX = 1 << 20  # answers pile up to this size before they are sent, within one wake-up
WAITING_PRODUCES = 256  # of one connection

_SIZE = struct.Struct(">i")
_KEY = struct.Struct(">h")


class RequestChannel:
    """Starts requests and puts their answers in order. One for all connections."""

    __slots__ = ("_apis", "_budget", "_hungry", "_settings", "in_work")

    def __init__(self, apis: KafkaApis, settings: NetworkSettings, budget: MemoryBudget) -> None:
        self._apis = apis
        self._settings = settings
        self._budget = budget
        self.in_work = 0  # requests that wait for work of this broker, not for clients or replicas
        self._hungry: deque[Connection] = deque()

    def run(self, connection: Connection, view: memoryview, at: int, end: int) -> int:
        """Start the requests of the whole frames in view[at:end]; returns the position up to which it got.

        Where that isn't the first unfinished frame, the connection is muted with the reason.
        """
        handle = self._apis.handle
        out, waiting = connection.out, connection.waiting
        largest = self._settings.socket_request_max_bytes
        left = REQUESTS_A_WAKE_UP
        deadline = connection.woken + NS_A_WAKE_UP
        try:
            while end - at >= 4:
                (size,) = _SIZE.unpack_from(view, at)
                if not 0 <= size <= largest:
                    raise CloseConnection(_invalid_receive(size, largest))
                stop = at + 4 + size
                if stop > end or connection.muted:
                    break
                if waiting and not self._may_overtake(connection, view, at + 4, stop):
                    connection.muted |= WAITING
                    break
                if self.in_work >= self._settings.queued_max_requests:
                    connection.muted |= NO_ROOM
                    self._hungry.append(connection)
                    break
                if left < REQUESTS_A_WAKE_UP and (not left or perf_counter_ns() > deadline):
                    connection.muted |= YIELDED
                    connection.processor.loop.call_soon(connection.unmute, YIELDED)
                    break
                left -= 1
                answer = handle(connection, view[at + 4 : stop])
                at = stop
                if answer is None:
                    continue
                if isinstance(answer, list):
                    if waiting:
                        waiting.append(answer)
                        continue
                    out.add(answer)
                    if out.size > UNSENT_MAX and not connection.muted & UNSENT:
                        connection.flush()
                        if connection.closed:
                            break
                else:
                    self._park(connection, answer, view)
        except CloseConnection as error:
            _log_close(connection, error.reason)
            connection.finish()
            at = end
        return at

    def _may_overtake(self, connection: Connection, view: memoryview, at: int, stop: int) -> bool:
        """Whether the frame at `at` may start while answers of earlier requests are outstanding."""
        return (
            stop - at >= 2 and _KEY.unpack_from(view, at)[0] == PRODUCE and len(connection.waiting) < WAITING_PRODUCES
        )

    def _park(self, connection: Connection, pending: PendingAnswer, view: memoryview) -> None:
        key = pending.context.api_key
        if key != PRODUCE:
            connection.muted |= WAITING
        if key not in PARKED:
            self.in_work += 1
        if pending.context.frame_kept:
            pending.kept_bytes = connection.give_frame(view)
            self._budget.charge(pending.kept_bytes)
        connection.waiting.append(pending)
        pending.begin(self._answered)

    def _answered(self, pending: PendingAnswer) -> None:
        if pending.kept_bytes:
            self._budget.release(pending.kept_bytes)
        connection = pending.connection
        if connection.closed:
            release(pending.parts or ())
        else:
            self._release_answers(connection)
            connection.answered()
        if pending.context.api_key not in PARKED:
            self.in_work -= 1
            if self._hungry:
                connection.processor.loop.call_soon(self._feed)

    def _release_answers(self, connection: Connection) -> None:
        """Hand over the answers that no earlier one holds back any more."""
        waiting = connection.waiting
        while waiting:
            head = waiting[0]
            if isinstance(head, PendingAnswer):
                if not head.ready:
                    return
                if head.failure is not None:
                    self._give_up(connection, head.failure)
                    return
                parts = head.parts
                if connection.context is None:
                    head.context.frame_kept = False
                    connection.context = head.context
            else:
                parts = head
            waiting.popleft()
            if parts is not None:
                connection.out.add(parts)

    def _give_up(self, connection: Connection, reason: str) -> None:
        """A request failed without an answer: none behind it gets one."""
        _log_close(connection, reason)
        for answer in connection.waiting:
            release(answer if isinstance(answer, list) else answer.parts or ())
        connection.waiting.clear()
        connection.muted |= ENDING

    def _feed(self) -> None:
        """Let connections go on while there is room for requests."""
        deadline = perf_counter_ns() + NS_A_WAKE_UP
        while self._hungry and self.in_work < self._settings.queued_max_requests:
            connection = self._hungry.popleft()
            connection.unmute(NO_ROOM)
            if self._hungry and perf_counter_ns() > deadline:
                connection.processor.loop.call_soon(self._feed)
                return


def _log_close(connection: Connection, reason: str) -> None:
    logger.warning("Closing socket for %s because of error: %s", connection, reason)


def _invalid_receive(size: int, largest: int) -> str:
    return f"Invalid receive (size = {size})" if size < 0 else f"Invalid receive (size = {size} larger than {largest})"
