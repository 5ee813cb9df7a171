"""A rate, as a token bucket: `rate` tokens a second flow in, at most `burst` are kept."""

from __future__ import annotations

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
