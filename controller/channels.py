"""The controller's requests on their way to the brokers: one queue and one request in flight per broker, in order, each
repeated until it is answered or the broker is gone (Kafka: ControllerChannelManager, RequestSendThread).

Where leaders move, the new ones hear first, and all others, the old leaders too, when these have answered. So, other
than in Kafka, no client is sent to a leader that does not know yet that it is one: of an idempotent producer's batches
in flight such a broker refuses the first ones and then, when it has heard, the others as out of order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pybroker.controller.requests import ControllerRequest, leads
from pybroker.protocol.schema import Message

log = logging.getLogger("pybroker.controller")

RETRY_SECONDS = 0.1
#: How long the others wait at most for new leaders to have heard.
GATE_SECONDS = 0.5


class BrokerChannels(Protocol):
    """Carries a request to a broker and returns its response; raises OSError where the broker can't be reached."""

    async def send(self, broker_id: int, request: ControllerRequest) -> Message: ...

    def forget(self, broker_id: int) -> None:
        """Nothing more is to be sent to a broker, at least for now."""


OnAnswer = Callable[[int, ControllerRequest, Message], None]


class Gate:
    """In the queues of several brokers: opens when those that it waits for have heard, or can't be reached, and
    GATE_SECONDS after it was made at the latest: behind a slow broker many of them are in a row."""

    __slots__ = ("_open", "_opens_at", "_waits_for")

    def __init__(self, waits_for: set[int]) -> None:
        self._waits_for = waits_for
        self._open = asyncio.Event()
        self._opens_at = asyncio.get_running_loop().time() + GATE_SECONDS

    def heard(self, broker_id: int) -> None:
        self._waits_for.discard(broker_id)
        if not self._waits_for:
            self._open.set()

    async def passed(self) -> None:
        """Returns when it is open."""
        if self._open.is_set():
            return
        try:
            async with asyncio.timeout_at(self._opens_at):
                await self._open.wait()
        except TimeoutError:
            log.info("brokers %s have not heard yet what they lead: the others hear now", sorted(self._waits_for))
            self._open.set()  # of all queues that wait here each once


class BrokerQueue:
    """What one broker is still to be told."""

    def __init__(
        self, broker_id: int, channels: BrokerChannels, on_answer: OnAnswer, on_idle: Callable[[], None]
    ) -> None:
        self._broker_id = broker_id
        self._channels = channels
        self._on_answer = on_answer
        self._on_idle = on_idle
        self._waiting: deque[tuple[ControllerRequest, Gate | None] | Gate] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._task is None

    def put(self, request: ControllerRequest, opens: Gate | None = None) -> None:
        """`opens`: the gate that waits for the answer."""
        self._put((request, opens))

    def hold(self, gate: Gate) -> None:
        """What is put later waits for the gate."""
        self._put(gate)

    def _put(self, item: tuple[ControllerRequest, Gate | None] | Gate) -> None:
        self._waiting.append(item)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name=f"controller-to-broker-{self._broker_id}")

    def close(self) -> None:
        """Drops what was not sent."""
        for item in self._waiting:
            self._heard(item)
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _heard(self, item: tuple[ControllerRequest, Gate | None] | Gate) -> None:
        if isinstance(item, tuple) and item[1] is not None:
            item[1].heard(self._broker_id)

    async def _send_all(self) -> None:
        reached = True
        while self._waiting:
            item = self._waiting[0]
            if isinstance(item, Gate):
                await item.passed()
                self._waiting.popleft()
                continue
            request = item[0]
            try:
                response = await self._channels.send(self._broker_id, request)
            except OSError as error:
                if reached:
                    log.warning("broker %d can't be reached: %s", self._broker_id, error)
                reached = False
                self._heard(item)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception:
                # A broker that fails at one request must not keep the others from it.
                log.exception("broker %d failed at %s", self._broker_id, type(request).__name__)
                self._heard(item)
                self._waiting.popleft()
                continue
            if not reached:
                log.info("broker %d is reached again", self._broker_id)
            reached = True
            self._heard(item)
            self._waiting.popleft()
            self._on_answer(self._broker_id, request, response)
        self._task = None
        self._on_idle()


class Outbox:
    """A queue for every broker. `idle` when nothing is left to send or to be answered."""

    def __init__(self, channels: BrokerChannels, on_answer: OnAnswer, on_idle: Callable[[], None]) -> None:
        self._channels = channels
        self._on_answer = on_answer
        self._on_idle = on_idle
        self._queues: dict[int, BrokerQueue] = {}

    @property
    def idle(self) -> bool:
        return all(queue.idle for queue in self._queues.values())

    def idle_at(self, broker_id: int) -> bool:
        """Whether nothing is left for this broker."""
        queue = self._queues.get(broker_id)
        return queue is None or queue.idle

    def put(self, requests: Sequence[tuple[int, ControllerRequest]]) -> None:
        """Requests with the broker each is for."""
        for broker_id, request in requests:
            self._queue(broker_id).put(request)

    def put_leaders_first(self, requests: Sequence[tuple[int, ControllerRequest]]) -> None:
        """The brokers that are told to lead hear at once, the others, and all of what comes later, after these."""
        first = [(broker_id, request) for broker_id, request in requests if leads(broker_id, request)]
        gate = Gate({broker_id for broker_id, _ in first})
        for broker_id, request in first:
            self._queue(broker_id).put(request, gate)
        if first:
            for queue in self._queues.values():
                queue.hold(gate)
        self.put([(broker_id, request) for broker_id, request in requests if not leads(broker_id, request)])

    def _queue(self, broker_id: int) -> BrokerQueue:
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = BrokerQueue(broker_id, self._channels, self._on_answer, self._on_idle)
            self._queues[broker_id] = queue
        return queue

    def keep_only(self, broker_ids: set[int]) -> None:
        """Forgets brokers that are gone, with what they were still to be told."""
        for broker_id in [broker_id for broker_id in self._queues if broker_id not in broker_ids]:
            self._queues.pop(broker_id).close()
            self._channels.forget(broker_id)

    def close(self) -> None:
        self.keep_only(set())
