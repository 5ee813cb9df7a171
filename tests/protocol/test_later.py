"""A result that is handed on at once."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.protocol.later import Later


def test_the_waiting_one_is_called_in_the_call_that_sets_it() -> None:
    later: Later[int] = Later()
    seen: list[int] = []
    later.then(lambda done: seen.append(done.result()))
    assert not later.done()
    assert not seen
    later.set_result(3)
    assert seen == [3]
    later.then(lambda done: seen.append(done.result() + 1))
    assert seen == [3, 4]


def test_an_exception_is_raised_by_result() -> None:
    later: Later[int] = Later()
    later.set_exception(ValueError("no"))
    assert later.done()
    with pytest.raises(ValueError, match="no"):
        later.result()


async def test_it_may_be_awaited() -> None:
    later: Later[str] = Later()

    async def wait() -> str:
        return await later

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    later.set_result("done")
    assert await waiting == "done"
    assert await later == "done"


async def test_it_may_be_set_when_nobody_waits_any_more() -> None:
    later: Later[str] = Later()

    async def wait() -> str:
        return await later

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    later.set_result("late")
