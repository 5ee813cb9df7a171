"""Long computations beside requests: pure work in small steps, whose slow calls are made by threads.

The interpreter lock makes a thread of no use to what is computed in Python: each call of the event loop would wait for
it. So such work is a generator that is run on the loop, a few milliseconds at a time; what gives up the lock for its
whole length (compression, reading a file) it hands out to be run by a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from typing import Any, TypeVar

from pybroker.protocol.pace import Pace

T = TypeVar("T")
#: A call for a thread. It must not touch what the event loop may change meanwhile.
Call = Callable[[], Any]
#: Yields None wherever it may be interrupted, or a Call, and is sent what that returned (or thrown what it raised).
Work = Generator[Call | None, Any, T]


class Workshop:
    """Does one piece of work at a time, first come first served: so what they hold in between is held once."""

    __slots__ = ("_threads", "_turn")

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._turn = asyncio.Lock()

    async def do(self, work: Work[T]) -> T:
        """The work's result, while the event loop serves others in between. Raises what the work raises."""
        async with self._turn:
            try:
                return await self._do(work)
            finally:
                work.close()

    async def call(self, call: Callable[[], T]) -> T:
        """What a Call returns, or raises, that needs no turn: it gives up the interpreter lock and holds nothing."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _do(self, work: Work[T]) -> T:
        loop = asyncio.get_running_loop()
        pace = Pace()
        resume, outcome = work.send, None
        try:
            while True:
                call = resume(outcome)
                resume, outcome = work.send, None
                if call is not None:
                    (outcome,) = await asyncio.gather(loop.run_in_executor(self._threads, call), return_exceptions=True)
                    if isinstance(outcome, BaseException):
                        resume = work.throw
                    pace = Pace()
                elif pace.due():
                    await pace.rest()
        except StopIteration as stop:
            result: T = stop.value
            return result


def finish(work: Work[T]) -> T:
    """Does all of it at once, slow calls too: for tools, worker processes and tests."""
    resume, outcome = work.send, None
    try:
        while True:
            call = resume(outcome)
            resume, outcome = work.send, None
            if call is not None:
                try:
                    outcome = call()
                except Exception as error:
                    resume, outcome = work.throw, error
    except StopIteration as stop:
        result: T = stop.value
        return result
