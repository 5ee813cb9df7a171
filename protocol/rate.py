"""Rates: how much may be done (a token bucket, into which tokens flow), and how much has been done (windows)."""

from __future__ import annotations

from collections import deque

from pybroker.protocol.clock import Clock


class TokenBucket:
    """Tokens taken over a Clock. `try_take` refuses what is not there; `take` goes into debt and says for how long."""

    __slots__ = ("_clock", "_filled_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self.rate = rate
        self.burst = burst
        self._clock = clock
        self._tokens = burst
        self._filled_at = clock.monotonic_ms()

    def try_take(self, amount: float = 1.0) -> bool:
        """Take `amount` if that many tokens are there."""
        self._fill()
        if self._tokens < amount:
            return False
        self._tokens -= amount
        return True

    def take(self, amount: float = 1.0) -> int:
        """Take `amount` at any rate; returns the ms until the bucket is out of debt again, 0 when it is not in debt."""
        self._fill()
        self._tokens -= amount
        return self._wait_for(0.0)

    def wait_ms(self, amount: float = 1.0) -> int:
        """The ms until `amount` tokens will be there."""
        self._fill()
        return self._wait_for(amount)

    def _wait_for(self, tokens: float) -> int:
        missing = tokens - self._tokens
        if missing <= 0:
            return 0
        return -int(-missing * 1000 // self.rate) if self.rate > 0 else 2**31 - 1

    def _fill(self) -> None:
        now = self._clock.monotonic_ms()
        self._tokens = min(self.burst, self._tokens + self.rate * (now - self._filled_at) / 1000)
        self._filled_at = now


class WindowedRate:
    """What was recorded a second, over the last windows: `samples` of them, `window_ms` long each.

    Kafka's SimpleRate: the time that counts is from the beginning of the oldest window that is still kept, and at least
    one window.
    """

    __slots__ = ("_clock", "_kept_ms", "_sum", "_window_ms", "_windows")

    def __init__(self, samples: int, window_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._window_ms = window_ms
        self._kept_ms = samples * window_ms
        self._windows: deque[list[int]] = deque()  # begin in ms, what was recorded
        self._sum = 0

    def record(self, amount: int) -> None:
        now = self._clock.monotonic_ms()
        if not self._windows or now - self._windows[-1][0] >= self._window_ms:
            self._windows.append([now, 0])
        self._windows[-1][1] += amount
        self._sum += amount

    def per_second(self) -> float:
        now = self._clock.monotonic_ms()
        windows = self._windows
        while windows and now - windows[0][0] >= self._kept_ms:
            self._sum -= windows.popleft()[1]
        if not windows:
            return 0.0
        return self._sum * 1000 / max(now - windows[0][0], self._window_ms)
