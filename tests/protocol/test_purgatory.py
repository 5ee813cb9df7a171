from __future__ import annotations

from pybroker.protocol.clock import ManualClock
from pybroker.protocol.purgatory import DelayedOperation, Purgatory
from pybroker.protocol.timer import Timer


class Wait(DelayedOperation):
    """Completes once `needed` events were seen."""

    def __init__(self, events: dict[str, int], key: str, needed: int) -> None:
        super().__init__()
        self.events, self.key, self.needed = events, key, needed
        self.tries = self.completions = self.expirations = 0

    def try_complete(self) -> bool:
        self.tries += 1
        return self.events.get(self.key, 0) >= self.needed and self.complete()

    def on_complete(self) -> None:
        self.completions += 1

    def on_expiration(self) -> None:
        self.expirations += 1


def make() -> tuple[ManualClock, Timer, Purgatory]:
    clock = ManualClock()
    timer = Timer(clock)
    return clock, timer, Purgatory(timer)


def test_complete_at_once_is_never_watched() -> None:
    _, timer, purgatory = make()
    operation = Wait({"a": 1}, "a", 1)
    assert purgatory.try_complete_else_watch(operation, ["a"], 100)
    assert operation.completions == 1 and len(purgatory) == purgatory.watched_keys == len(timer) == 0


def test_check_tries_only_what_waits_on_the_key() -> None:
    _, timer, purgatory = make()
    events: dict[str, int] = {}
    mine = [Wait(events, "a", n) for n in (1, 2)]
    others = [Wait(events, "b", 1) for _ in range(100)]
    for operation in mine + others:
        assert not purgatory.try_complete_else_watch(operation, [operation.key, "c" + operation.key], 1000)
    events["a"] = 1
    assert purgatory.check("nothing") == 0
    assert purgatory.check("a") == 1
    assert [operation.tries for operation in mine] == [2, 2] and {operation.tries for operation in others} == {1}
    assert purgatory.waiting_on("a") == (mine[1],) == purgatory.waiting_on("ca")
    events["a"] = 2
    assert purgatory.check("ca") == 1
    assert len(purgatory) == 100 and len(timer) == 100


def test_timeout_expires_once_and_leaves_nothing_behind() -> None:
    clock, timer, purgatory = make()
    operation = Wait({}, "a", 1)
    purgatory.watch(operation, ["a", "b", "b"], 50)
    forever = Wait({}, "a", 1)
    purgatory.watch(forever, ["a"], None)
    clock.advance(49)
    timer.run_due()
    assert not operation.completed
    clock.advance(20)
    timer.run_due()
    assert (operation.expirations, operation.completions) == (1, 1) and not forever.completed
    operation.events["a"] = 1
    purgatory.check("b")
    assert operation.completions == 1
    forever.cancel()
    assert forever.completions == 0
    assert len(purgatory) == purgatory.watched_keys == len(timer) == 0


def test_completing_from_outside_and_from_within_a_check() -> None:
    _, timer, purgatory = make()

    class Chain(Wait):
        def on_complete(self) -> None:
            super().on_complete()
            purgatory.check("a")  # whoever is completed may complete others of the same key

    events = {"a": 0}
    chain = [Chain(events, "a", 1) for _ in range(5)]
    for operation in chain:
        purgatory.watch(operation, ["a"], 10)
    assert chain[3].complete() and not chain[3].complete()
    events["a"] = 1
    purgatory.check("a")
    assert [operation.completions for operation in chain] == [1] * 5
    assert len(purgatory) == purgatory.watched_keys == len(timer) == 0
