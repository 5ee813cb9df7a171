from __future__ import annotations

from pybroker.protocol.clock import ManualClock, SystemClock
from pybroker.protocol.rate import TokenBucket, WindowedRate


def test_burst_then_rate() -> None:
    clock = ManualClock()
    bucket = TokenBucket(10, 5, clock)
    assert [bucket.try_take() for _ in range(6)] == [True] * 5 + [False]
    assert bucket.wait_ms() == 100
    clock.advance(100)
    assert bucket.try_take() and not bucket.try_take()
    clock.advance(10_000)
    assert bucket.try_take(5) and not bucket.try_take()


def test_debt_says_how_long_to_wait() -> None:
    clock = ManualClock()
    bucket = TokenBucket(1000, 1000, clock)
    assert bucket.take(1000) == 0
    assert bucket.take(2115) == 2115
    clock.advance(2000)
    assert bucket.wait_ms(0) == 115 and not bucket.try_take(0)
    clock.advance(115)
    assert bucket.wait_ms(0) == 0 and bucket.take(0) == 0


def test_rate_zero_never_fills() -> None:
    bucket = TokenBucket(0, 0, ManualClock())
    assert not bucket.try_take() and bucket.wait_ms() == 2**31 - 1


def test_system_clock_reads_both_times() -> None:
    clock = SystemClock()
    assert clock.now_ms() > 1_600_000_000_000 and clock.monotonic_ms() <= clock.monotonic_ms()


def test_windows() -> None:
    clock = ManualClock()
    rate = WindowedRate(3, 1000, clock)
    assert rate.per_second() == 0
    rate.record(500)
    assert rate.per_second() == 500  # at least one window counts
    clock.advance(999)
    rate.record(500)
    assert rate.per_second() == 1000
    clock.advance(1001)  # 2000 since the first
    rate.record(1000)
    assert rate.per_second() == 1000
    clock.advance(1000)  # the first window is gone
    assert rate.per_second() == 1000
    clock.advance(1000)
    assert rate.per_second() == 500
    clock.advance(1000)
    assert rate.per_second() == 0
