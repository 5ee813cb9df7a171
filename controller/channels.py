"""The controller's requests on their way to the brokers: one queue and one request in flight per broker, in order, each
repeated until it is answered or the broker is gone (Kafka: ControllerChannelManager, RequestSendThread)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pybroker.controller.requests import ControllerRequest
from pybroker.protocol.schema import Message

log = logging.getLogger("pybroker.controller")

RETRY_SECONDS = 0.1


class BrokerChannels(Protocol):
    """Carries a request to a broker and returns its response; raises OSError where the broker can't be reached."""

    async def send(self, broker_id: int, request: ControllerRequest) -> Message: ...

    def forget(self, broker_id: int) -> None:
        """Nothing more is to be sent to a broker, at least for now."""


OnAnswer = Callable[[int, ControllerRequest, Message], None]


class BrokerQueue:
    """What one broker is still to be told."""

    def __init__(
        self, broker_id: int, channels: BrokerChannels, on_answer: OnAnswer, on_idle: Callable[[], None]
    ) -> None:
        self._broker_id = broker_id
        self._channels = channels
        self._on_answer = on_answer
        self._on_idle = on_idle
        self._waiting: deque[ControllerRequest] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._task is None

    def put(self, request: ControllerRequest) -> None:
        self._waiting.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name=f"controller-to-broker-{self._broker_id}")

    def close(self) -> None:
        """Drops what was not sent."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _send_all(self) -> None:
        reached = True
        while self._waiting:
            request = self._waiting[0]
            try:
                response = await self._channels.send(self._broker_id, request)
            except OSError as error:
                if reached:
                    log.warning("broker %d can't be reached: %s", self._broker_id, error)
                reached = False
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception:
                # A broker that fails at one request must not keep the others from it.
                log.exception("broker %d failed at %s", self._broker_id, type(request).__name__)
                self._waiting.popleft()
                continue
            if not reached:
                log.info("broker %d is reached again", self._broker_id)
            reached = True
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

    def put(self, broker_id: int, request: ControllerRequest) -> None:
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = BrokerQueue(broker_id, self._channels, self._on_answer, self._on_idle)
            self._queues[broker_id] = queue
        queue.put(request)

    def keep_only(self, broker_ids: set[int]) -> None:
        """Forgets brokers that are gone, with what they were still to be told."""
        for broker_id in [broker_id for broker_id in self._queues if broker_id not in broker_ids]:
            self._queues.pop(broker_id).close()
            self._channels.forget(broker_id)

    def close(self) -> None:
        self.keep_only(set())
