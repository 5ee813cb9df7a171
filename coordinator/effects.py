"""What a decision leads to: answers to give, timers to set, records to write. Deciders fill it, the runtime does it.

Also where an answer goes (Reply), since a decision may answer requests that came long before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pybroker.coordinator.records import Record
from pybroker.protocol.errors import Errors


class TimerKey(NamedTuple):
    """Names a timer: what for, of which group (or transaction), of which member."""

    kind: str
    group_id: str
    member_id: str = ""


class Written(Protocol):
    """Called when a write is committed (NONE) or has failed: decides what follows."""

    def __call__(self, error: Errors, effects: Effects) -> None: ...


class Write(NamedTuple):
    """Records to append in one batch. `producer` is (id, epoch) of the transaction they belong to, `sequence` what
    stands in the batch's header: Kafka writes 0 there with offsets, though nothing goes by it."""

    records: Sequence[Record]
    written: Written
    producer: tuple[int, int] | None = None
    sequence: int = -1


class Effects:
    """The outcome of one decision, in the order in which things were decided."""

    __slots__ = ("answers", "timers", "writes")

    def __init__(self) -> None:
        self.answers: list[tuple[Reply, Any]] = []
        self.timers: list[tuple[TimerKey, int | None]] = []
        self.writes: list[Write] = []

    def answer(self, reply: Reply, response: Any) -> None:
        self.answers.append((reply, response))

    def set_timer(self, key: TimerKey, due_ms: int) -> None:
        """Wake the decider at `due_ms` of the monotonic clock, instead of when it was asked for before."""
        self.timers.append((key, due_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        self.timers.append((key, None))

    def write(
        self, records: Sequence[Record], written: Written, producer: tuple[int, int] | None = None, sequence: int = -1
    ) -> None:
        self.writes.append(Write(records, written, producer, sequence))


def ignore(error: Errors, effects: Effects) -> None:
    """Nothing follows from this write, whatever became of it."""


class Reply:
    """Where the answer to one request goes. `version` is the request's, for answers that depend on it.

    An answer that is there when the handler returns costs no future. `finish` makes the response out of what a decider
    answered. Answers after the first are ignored, as are those nobody waits for any more.
    """

    __slots__ = ("_answer", "_answered", "_finish", "_future", "version")

    def __init__(self, version: int, finish: Callable[[Any], Any] | None = None) -> None:
        self.version = version
        self._finish = finish
        self._answered = False
        self._answer: Any = None
        self._future: asyncio.Future[Any] | None = None

    def set(self, answer: Any) -> None:
        if self._answered:
            return
        self._answered = True
        self._answer = answer if self._finish is None else self._finish(answer)
        if self._future is not None and not self._future.done():
            self._future.set_result(self._answer)

    def result(self) -> Any:
        """The response, or a future of it."""
        if self._answered:
            return self._answer
        self._future = asyncio.get_running_loop().create_future()
        return self._future
