"""Long work in short steps, so that nothing holds the event loop: whoever loops over partitions rests every 2 ms."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")
#: Pure work that yields wherever it may be interrupted and returns its result.
Steps = Generator[None, None, T]

STEP_SECONDS = 0.002


class Pace:
    """`if pace.due(): await pace.rest()` inside a loop."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = perf_counter() + STEP_SECONDS

    def due(self) -> bool:
        return perf_counter() >= self._until

    async def rest(self) -> None:
        await asyncio.sleep(0)
        self._until = perf_counter() + STEP_SECONDS


async def run_steps(steps: Steps[T]) -> T:
    """Runs pure work to its end, letting others run every 2 ms."""
    pace = Pace()
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if pace.due():
            await pace.rest()


def finish(steps: Steps[T]) -> T:
    """Runs pure work to its end at once: for scripts and tests."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
