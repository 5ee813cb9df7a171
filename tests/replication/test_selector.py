"""The replica in the consumer's rack."""

from __future__ import annotations

from pybroker.replication.selector import rack_aware
from tests.replication.test_isr import Bench

RACKS = {1: "a", 2: "b", 3: "b"}


def test_the_one_in_the_rack_that_has_most_and_is_in_sync() -> None:
    bench = Bench(isr=(1, 2, 3))
    led = bench.partitions[0]
    for _ in range(4):
        bench.append()
    bench.fetch(2, 2)
    bench.fetch(3, 4)
    prefer = rack_aware(RACKS.get)
    assert prefer(led, 1, "b") == 3
    assert prefer(led, 1, "a") is None  # this broker itself
    assert prefer(led, 1, "nowhere") is None
    led.commit_isr((1, 2), 8)
    assert prefer(led, 1, "b") == 2
    assert prefer(led, 3, "b") is None  # it has not got that far
