"""One hashed wheel for everything that waits for a time.

A task hangs in the slot of the tick in which it is due, modulo the wheel's size; a task further away than one turn is
passed over until its turn has come. Scheduling and cancelling are O(1). A bit per slot says where tasks hang, so the
next tick with work is found without a walk, and the event loop carries a single timer of ours, armed only while
something waits. A task never runs early, and at most one tick (TICK_MS) late on an idle loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter

from pybroker.protocol.clock import Clock

logger = logging.getLogger(__name__)

TICK_MS = 4
SLOTS = 1024
_MASK = SLOTS - 1
_ALL = (1 << SLOTS) - 1
_SLICE_SECONDS = 0.002  # how long due callbacks may hold the loop in one go


class TimerTask:
    """A callback that will run once, unless `cancel` comes first."""

    __slots__ = ("_timer", "callback", "tick")

    def __init__(self, timer: Timer, tick: int, callback: Callable[[], object]) -> None:
        self._timer = timer
        self.tick = tick
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Forget the callback; harmless when it has run or was cancelled."""
        if self.callback is not None:
            self.callback = None
            self._timer._remove(self)

    @property
    def pending(self) -> bool:
        return self.callback is not None


class Timer:
    """Runs callbacks on `loop` when their time by `clock` has come; without a loop, when `run_due` is called."""

    __slots__ = ("_armed_tick", "_clock", "_count", "_due", "_handle", "_loop", "_occupied", "_slots", "_tick")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._clock = clock
        self._loop = loop
        self._slots: list[dict[TimerTask, None]] = [{} for _ in range(SLOTS)]
        self._occupied = 0  # bit i: slot i holds a task
        self._count = 0
        self._tick = clock.monotonic_ms() // TICK_MS  # every tick up to this one has been run
        self._due: deque[TimerTask] = deque()
        self._handle: asyncio.Handle | None = None
        self._armed_tick = 0

    def __len__(self) -> int:
        return self._count

    def schedule(self, delay_ms: float, callback: Callable[[], object]) -> TimerTask:
        """Run `callback` once, `delay_ms` or a little more from now."""
        now = self._clock.monotonic_ms()
        if not self._count and not self._due:
            self._tick = now // TICK_MS  # nothing waited, so nothing was missed meanwhile
        # The millisecond that has begun counts as gone, hence + TICK_MS: never early.
        tick = max((now + int(delay_ms) + TICK_MS) // TICK_MS, self._tick + 1)
        task = TimerTask(self, tick, callback)
        index = tick & _MASK
        self._slots[index][task] = None
        self._occupied |= 1 << index
        self._count += 1
        if self._loop is not None and (self._handle is None or tick < self._armed_tick):
            self._arm(tick, now)
        return task

    def run_due(self) -> None:
        """Run what is due; what does not fit into 2 ms follows after other work of the loop."""
        self._collect(self._clock.monotonic_ms() // TICK_MS)
        deadline = perf_counter() + _SLICE_SECONDS
        due = self._due
        while due:
            task = due.popleft()
            if task.callback is not None:
                callback, task.callback = task.callback, None
                self._run(callback)
                if self._loop is not None and due and perf_counter() > deadline:
                    break

    def close(self) -> None:
        """Drop every task and disarm the loop's timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        for slot in self._slots:
            for task in slot:
                task.callback = None
            slot.clear()
        self._due.clear()
        self._occupied = self._count = 0

    def _run(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("Error in a timer task")  # one failing task must not take the others along

    def _collect(self, now_tick: int) -> None:
        """Move the tasks of every tick up to now_tick to the due queue."""
        first, self._tick = self._tick + 1, max(now_tick, self._tick)
        if not self._occupied or now_tick < first:
            return
        due = []
        for index in self._occupied_slots(first, min(now_tick - first + 1, SLOTS)):
            slot = self._slots[index]
            if ready := [task for task in slot if task.tick <= now_tick]:
                for task in ready:
                    del slot[task]
                due += ready
                if not slot:
                    self._occupied &= ~(1 << index)
        self._count -= len(due)
        due.sort(key=lambda task: task.tick)  # in order already, unless the loop was late by more than a turn
        self._due.extend(due)

    def _occupied_slots(self, first_tick: int, count: int) -> list[int]:
        """The slots that hold tasks among those of `count` ticks from first_tick on, in order of time."""
        start = first_tick & _MASK
        turned = ((self._occupied >> start) | (self._occupied << (SLOTS - start))) & _ALL
        turned &= (1 << count) - 1
        slots = []
        while turned:
            lowest = turned & -turned
            slots.append((start + lowest.bit_length() - 1) & _MASK)
            turned ^= lowest
        return slots

    def _next_tick(self) -> int:
        """The next tick whose slot holds a task (perhaps one of a later turn)."""
        start = (self._tick + 1) & _MASK
        turned = ((self._occupied >> start) | (self._occupied << (SLOTS - start))) & _ALL
        return self._tick + (turned & -turned).bit_length()

    def _arm(self, tick: int, now_ms: int) -> None:
        assert self._loop is not None
        if self._handle is not None:
            self._handle.cancel()
        self._armed_tick = tick
        self._handle = self._loop.call_later(max(0, tick * TICK_MS - now_ms) / 1000, self._wake)

    def _wake(self) -> None:
        assert self._loop is not None
        self._handle = None
        self.run_due()
        if self._due:
            self._armed_tick = self._tick
            self._handle = self._loop.call_soon(self._wake)
        elif self._count:
            # What ran may have armed the timer for what it scheduled, while something earlier hangs in the wheel.
            tick = self._next_tick()
            if self._handle is None or tick < self._armed_tick:
                self._arm(tick, self._clock.monotonic_ms())

    def _remove(self, task: TimerTask) -> None:
        """Take a cancelled task out of its slot; one that is already in the due queue is skipped there."""
        index = task.tick & _MASK
        slot = self._slots[index]
        if task in slot:
            del slot[task]
            self._count -= 1
            if not slot:
                self._occupied &= ~(1 << index)
