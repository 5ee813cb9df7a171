"""Whether the metadata store can be reached, for requests that have nothing to do without it."""

from __future__ import annotations

from pybroker.controller.store import SessionState
from pybroker.protocol.clock import Clock

#: Requests wait for a store that is away, as its outages are short mostly; after so long new ones are refused at once.
PATIENCE_MS = 10_000


class StoreWatch:
    """Hears of the session with the store."""

    __slots__ = ("_clock", "_since_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: int | None = None

    def session_changed(self, state: SessionState) -> None:
        """For MetadataStore.on_session."""
        if state == "connected":
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = self._clock.monotonic_ms()

    @property
    def is_away(self) -> bool:
        """It has been out of reach for longer than PATIENCE_MS. What waits for it takes up request slots, and memory:
        clients give up and ask again."""
        return self._since_ms is not None and self._clock.monotonic_ms() - self._since_ms > PATIENCE_MS
