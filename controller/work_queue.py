"""What the controller has still to do: places to look at again, and events, one after the other.

Watches only say where to look; a place that waits already is not queued again, so many changes of one kind that come
together are one event (Kafka: ControllerEventManager).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pybroker.controller.outcome import Outcome
from pybroker.controller.state import Event
from pybroker.protocol.errors import Errors, KafkaError

#: How long work waits that the store could not serve.
RETRY_SECONDS = 0.5

Look = Callable[[], Awaitable[Event | None]]


class Work:
    """An entry of the queue: where to look for an event, or events; and who waits for the first one's outcome.
    `any_broker`: it is not only the controller's work. `whole`: who waits wants all that follows to be done as well."""

    __slots__ = ("any_broker", "asked", "events", "look", "outcome", "whole")

    def __init__(
        self,
        look: Look | None,
        events: list[Event] | None = None,
        asked: asyncio.Future[Outcome] | None = None,
        *,
        any_broker: bool = False,
        whole: bool = False,
    ) -> None:
        self.look = look
        self.events = events or []
        self.asked = asked
        self.any_broker = any_broker
        self.whole = whole
        self.outcome: Outcome | None = None  # the first event's

    def answer(self) -> None:
        if self.asked is not None and not self.asked.done() and self.outcome is not None:
            self.asked.set_result(self.outcome)

    def fail(self, error: KafkaError) -> None:
        if self.asked is not None and not self.asked.done():
            self.asked.set_exception(error)


class WorkQueue:
    """Work in the order in which it came. `on_idle` is called whenever there is no more."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        self._on_idle = on_idle
        self._waiting: dict[object, Work] = {}
        self._wake = asyncio.Event()
        self._busy = False
        self._delayed = 0

    @property
    def idle(self) -> bool:
        """Nothing waits, is under way or is to be taken up later."""
        return not (self._busy or self._waiting or self._delayed)

    def put(self, key: object, look: Look, *, any_broker: bool = False) -> None:
        """Queues a place to look at; one that is queued already stays where it is."""
        if key not in self._waiting:
            self._add(key, Work(look, any_broker=any_broker))

    def put_event(self, event: Event) -> None:
        self._add(object(), Work(None, [event]))

    async def ask(self, event: Event, *, whole: bool) -> Outcome:
        """Queues an event and waits for its outcome, or for all that follows from it as well. Raises KafkaError."""
        asked: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._add(object(), Work(None, [event], asked, whole=whole))
        return await asked

    def later(self, work: Work, wanted: Callable[[], bool]) -> None:
        """Work that the store could not serve comes again after a while, if it is wanted then."""
        self._delayed += 1
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._take_up, work, wanted)

    def drop_office(self) -> None:
        """This broker is not the controller any more: what only the controller does is dropped, and who waits hears
        NOT_CONTROLLER."""
        dropped = [work for work in self._waiting.values() if not work.any_broker]
        self._waiting = {key: work for key, work in self._waiting.items() if work.any_broker}
        for work in dropped:
            work.fail(KafkaError(Errors.NOT_CONTROLLER))

    async def run(self, do: Callable[[object, Work], Awaitable[None]]) -> None:
        """Does one after the other, until cancelled. `do` also gets the work's key, for log lines."""
        while True:
            while self._waiting:
                self._busy = True
                key = next(iter(self._waiting))
                await do(key, self._waiting.pop(key))
                self._busy = False
            self._wake.clear()
            self._on_idle()
            await self._wake.wait()

    def _add(self, key: object, work: Work) -> None:
        self._waiting[key] = work
        self._wake.set()

    def _take_up(self, work: Work, wanted: Callable[[], bool]) -> None:
        self._delayed -= 1
        if wanted():
            self._add(object(), work)
        self._on_idle()
