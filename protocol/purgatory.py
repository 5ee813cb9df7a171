"""Operations that wait for an event: a Produce for its replicas, a Fetch for data, a join for the other members.

An operation is watched under keys (a partition, a group). Whoever makes the event happen calls `check(key)`, which
tries the operations waiting on that key and no others; a timer ends the wait of the rest. An operation that is
complete leaves all its keys at once, so nothing finished is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from pybroker.protocol.timer import Timer, TimerTask


class DelayedOperation:
    """Subclass with what it waits for. `complete` and `expire` lead to exactly one call of `on_complete`."""

    __slots__ = ("_keys", "_purgatory", "_task", "completed")

    def __init__(self) -> None:
        self.completed = False
        self._purgatory: Purgatory | None = None
        self._keys: tuple[Hashable, ...] = ()
        self._task: TimerTask | None = None

    def try_complete(self) -> bool:
        """Call `complete` and return True if what this operation waits for has happened; else return False."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Do what was waited for: build the answer, resolve the future."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """Called before `on_complete` when the time ran out first."""

    def complete(self) -> bool:
        """End the wait; False if it was over already."""
        if self.completed:
            return False
        self.completed = True
        if self._purgatory is not None:
            self._purgatory._forget(self)
        self.on_complete()
        return True

    def expire(self) -> None:
        """End the wait because its time is up."""
        if not self.completed:
            self.on_expiration()
            self.complete()

    def cancel(self) -> None:
        """End the wait without completing: nobody wants the answer any more."""
        if not self.completed:
            self.completed = True
            if self._purgatory is not None:
                self._purgatory._forget(self)


class Purgatory:
    """Keys → operations waiting on them."""

    __slots__ = ("_timer", "_waiting", "_watchers")

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """How many operations wait."""
        return self._waiting

    @property
    def watched_keys(self) -> int:
        return len(self._watchers)

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], timeout_ms: float | None
    ) -> bool:
        """Complete the operation now if it can be (True), else let it wait on `keys` for timeout_ms (None: for ever)."""
        if operation.try_complete():
            return True
        self.watch(operation, keys, timeout_ms)
        return False

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], timeout_ms: float | None) -> None:
        """Let the operation wait without trying it first; for callers that know it cannot be complete."""
        operation._purgatory = self
        operation._keys = tuple(keys)
        for key in operation._keys:
            waiting = self._watchers.get(key)
            if waiting is None:
                self._watchers[key] = {operation: None}
            else:
                waiting[operation] = None
        self._waiting += 1
        if timeout_ms is not None:
            operation._task = self._timer.schedule(timeout_ms, operation.expire)

    def check(self, key: Hashable) -> int:
        """Try what waits on `key`; returns how many were completed. Costs nothing where nothing waits."""
        waiting = self._watchers.get(key)
        if waiting is None:
            return 0
        completed = 0
        for operation in tuple(waiting):
            if not operation.completed and operation.try_complete():
                completed += 1
        return completed

    def waiting_on(self, key: Hashable) -> tuple[DelayedOperation, ...]:
        return tuple(self._watchers.get(key, ()))

    def _forget(self, operation: DelayedOperation) -> None:
        for key in operation._keys:
            waiting = self._watchers.get(key)
            if waiting is not None and operation in waiting:
                del waiting[operation]
                if not waiting:
                    del self._watchers[key]
        if operation._task is not None:
            operation._task.cancel()
            operation._task = None
        operation._keys = ()
        operation._purgatory = None
        self._waiting -= 1
