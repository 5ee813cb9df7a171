from __future__ import annotations

import asyncio
import random
import time
from functools import partial

import pytest

from pybroker.protocol.clock import ManualClock, SystemClock
from pybroker.protocol.timer import SLOTS, TICK_MS, Timer


def run_at(clock: ManualClock, timer: Timer, ms: int) -> None:
    clock.advance(ms)
    timer.run_due()


def test_never_early_and_at_most_a_tick_late() -> None:
    clock = ManualClock(monotonic_ms=3)
    timer = Timer(clock)
    fired: dict[int, int] = {}

    def note(delay: int) -> None:
        fired[delay] = clock.monotonic_ms() - 3

    for delay in (0, 1, 3, 4, 5, 17, 100, TICK_MS * SLOTS, TICK_MS * SLOTS * 3 + 1):
        timer.schedule(delay, partial(note, delay))
    for _ in range(TICK_MS * SLOTS * 4):
        run_at(clock, timer, 1)
    assert len(fired) == 9 and len(timer) == 0
    assert all(delay <= at <= delay + TICK_MS + 1 for delay, at in fired.items()), fired


def test_random_delays_run_in_order_of_time_however_coarsely_the_clock_moves() -> None:
    random.seed(7)
    clock = ManualClock()
    timer = Timer(clock)
    order: list[int] = []
    delays = [random.randrange(60_000) for _ in range(500)]
    for delay in delays:
        timer.schedule(delay, partial(order.append, delay))
    while len(timer):
        run_at(clock, timer, random.randrange(1, 9_000))
    assert sorted(order) == sorted(delays)
    ticks = [(delay + TICK_MS) // TICK_MS for delay in order]
    assert ticks == sorted(ticks)


def test_cancel_before_and_after() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    ran: list[str] = []
    kept = timer.schedule(10, lambda: ran.append("kept"))
    gone = timer.schedule(10, lambda: ran.append("gone"))
    assert gone.pending
    gone.cancel()
    gone.cancel()
    assert not gone.pending and len(timer) == 1
    run_at(clock, timer, 50)
    assert ran == ["kept"] and not kept.pending
    kept.cancel()
    assert len(timer) == 0


def test_a_task_may_cancel_another_that_is_due_too_and_schedule_a_new_one() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        second.cancel()
        timer.schedule(0, lambda: ran.append("third"))

    timer.schedule(10, first)
    second = timer.schedule(10, lambda: ran.append("second"))
    run_at(clock, timer, 20)
    run_at(clock, timer, 20)
    assert ran == ["first", "third"]


def test_a_failing_task_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    timer = Timer(clock)
    ran: list[int] = []
    timer.schedule(1, lambda: 1 // 0)
    timer.schedule(1, lambda: ran.append(1))
    run_at(clock, timer, 20)
    assert ran == [1] and "Error in a timer task" in caplog.text


def test_long_silence_then_a_task_is_not_taken_for_missed() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    clock.advance(TICK_MS * SLOTS * 10 + 3)
    ran: list[int] = []
    timer.schedule(100, lambda: ran.append(1))
    run_at(clock, timer, 99)
    assert not ran
    run_at(clock, timer, 10)
    assert ran


async def test_on_a_loop_it_is_armed_only_while_something_waits() -> None:
    loop = asyncio.get_running_loop()
    timer = Timer(SystemClock(), loop)
    assert timer._handle is None
    done = asyncio.Event()
    started = time.monotonic()
    later = timer.schedule(60_000, lambda: None)
    timer.schedule(20, done.set)
    await asyncio.wait_for(done.wait(), 5)
    assert time.monotonic() - started >= 0.02
    assert timer._handle is not None
    later.cancel()
    timer.close()
    assert timer._handle is None and len(timer) == 0


async def test_many_due_at_once_leave_the_loop_to_others() -> None:
    loop = asyncio.get_running_loop()
    timer = Timer(SystemClock(), loop)
    ran = 0
    between = 0
    done = asyncio.Event()

    def slow() -> None:
        nonlocal ran
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass
        ran += 1
        if ran == 40:
            done.set()

    def tick() -> None:
        nonlocal between
        between += 1
        if not done.is_set():
            loop.call_soon(tick)

    for _ in range(40):
        timer.schedule(1, slow)
    loop.call_soon(tick)
    await asyncio.wait_for(done.wait(), 5)
    seen = between
    assert ran == 40 and seen > 5
    timer.close()


async def test_what_a_task_schedules_does_not_put_off_what_waits_already() -> None:
    timer = Timer(SystemClock(), asyncio.get_running_loop())
    done = asyncio.Event()
    timer.schedule(10, lambda: timer.schedule(60_000, lambda: None))  # re-arms the loop's timer for a minute later
    timer.schedule(60, done.set)
    await asyncio.wait_for(done.wait(), 5)
    timer.close()
