"""A result that comes later and is handed on in the very call that brings it.

A future's callbacks run in the next turn of the loop, and a task's await in the one after: on the way of an acks=all
produce that was most of its time. Whoever sets a result has to expect that it is used at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """Like a future, for one who waits: `then` has a function called, or it is awaited."""

    __slots__ = ("_done", "_error", "_result", "_then")

    def __init__(self) -> None:
        self._done = False
        self._result: Any = None
        self._error: Exception | None = None
        self._then: Callable[[Later[T]], object] | None = None

    def done(self) -> bool:
        return self._done

    def result(self) -> T:
        """What was set; raises what was set as exception. Not before it is done."""
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def set_result(self, result: T) -> None:
        self._result = result
        self._finish()

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._finish()

    def then(self, function: Callable[[Later[T]], object]) -> None:
        """Call it with this object when it is done, which may be now."""
        if self._done:
            function(self)
        else:
            self._then = function

    def _finish(self) -> None:
        self._done = True
        then, self._then = self._then, None  # the two may point at each other
        if then is not None:
            then(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda _: None if woken.done() else woken.set_result(None))
            yield from woken
        return self.result()
