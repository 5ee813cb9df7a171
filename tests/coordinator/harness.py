"""A GroupShard with a log, timers and a clock that are moved by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from pybroker.coordinator import records
from pybroker.coordinator.classic_join import Join
from pybroker.coordinator.effects import Effects, Reply, TimerKey, Write
from pybroker.coordinator.offsets import CommittedOffset, Place
from pybroker.coordinator.settings import GroupSettings
from pybroker.coordinator.shard import Committer, GroupShard
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.join_group import JoinGroupRequest
from pybroker.protocol.messages.sync_group import SyncGroupRequest


class Stored(NamedTuple):
    """One record of the log."""

    key: bytes
    value: bytes | None
    producer_id: int | None


class Harness:
    """`run` does what a runtime does. While `held`, writes wait for `release`; `failing` is the next one's error."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.clock = ManualClock()
        self.log: list[Stored] = []
        self.timers: dict[TimerKey, int] = {}
        self.pending: deque[Write] = deque()
        self.held = False
        self.failing: Errors | None = None
        self.on_write: Callable[[records.Record], None] = lambda record: None
        self._ids = count(1)
        self.shard = self.new_shard()

    def new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self.clock, lambda: next(self._ids))

    @property
    def committed(self) -> int:
        """How many records of the log are sure to survive a fail-over."""
        return len(self.log) - sum(len(write.records) for write in self.pending)

    # doing
    def run(self, effects: Effects) -> None:
        while True:
            for reply, response in effects.answers:
                reply.set(response)
            for key, due in effects.timers:
                if due is None:
                    self.timers.pop(key, None)
                else:
                    self.timers[key] = due
            writes, effects = effects.writes, Effects()
            if not writes:
                return
            for write in writes:
                self._write(write, effects)

    def _write(self, write: Write, effects: Effects) -> None:
        if self.failing is not None:
            error, self.failing = self.failing, None
            write.written(error, effects)
            return
        for record in write.records:
            self.on_write(record)
            producer_id = None if write.producer is None else write.producer[0]
            self.log.append(Stored(*records.encode(record), producer_id))
        if self.held:
            self.pending.append(write)
        else:
            write.written(Errors.NONE, effects)

    def release(self, error: Errors = Errors.NONE) -> None:
        """What was held is committed (or fails) now."""
        self.held = False
        while self.pending:
            effects = Effects()
            self.pending.popleft().written(error, effects)
            self.run(effects)

    def advance(self, ms: int) -> None:
        """Move the clock, and wake the timers that are due on the way, each at its time."""
        until = self.clock.monotonic_ms() + ms
        while True:
            due = min(self.timers.items(), key=lambda item: item[1], default=None)
            if due is None or due[1] > until:
                break
            key, at = due
            self.clock.advance(max(at - self.clock.monotonic_ms(), 0))
            del self.timers[key]
            effects = Effects()
            self.shard.timer(key, effects)
            self.run(effects)
        self.clock.advance(until - self.clock.monotonic_ms())

    def fail_over(self, upto: int | None = None) -> None:
        """Another broker takes over, with the log as it is (or its first `upto` records)."""
        effects = Effects()
        while self.pending:
            self.pending.popleft().written(Errors.NOT_LEADER_OR_FOLLOWER, effects)
        self.shard.unloaded(effects)
        for reply, response in effects.answers:
            reply.set(response)
        self.timers.clear()
        self.held = False
        if upto is not None:
            del self.log[upto:]
        self.shard = self.new_shard()
        for stored in self.log:
            self.shard.replay(records.decode(stored.key, stored.value), stored.producer_id)
        effects = Effects()
        self.shard.loaded(effects)
        self.run(effects)

    # asking
    def join(self, answered: Callable[[Any], None], client: str = "c", version: int = 9, **fields: Any) -> None:
        request = JoinGroupRequest(**{"group_id": "g", "protocol_type": "consumer"} | fields)
        effects = Effects()
        self.shard.join(Join(request, client, "/127.0.0.1", Reply(version, answered)), effects)
        self.run(effects)

    def sync(self, answered: Callable[[Any], None], **fields: Any) -> None:
        effects = Effects()
        self.shard.sync(SyncGroupRequest(**{"group_id": "g"} | fields), Reply(5, answered), effects)
        self.run(effects)

    def commit(
        self,
        answered: Callable[[list[Errors]], None],
        offsets: dict[Place, int],
        who: Committer,
        producer: tuple[int, int] | None = None,
        metadata: str = "",
        expires_at: int = -1,
    ) -> None:
        now = self.clock.now_ms()
        wanted = [(place, CommittedOffset(offset, -1, metadata, now, expires_at)) for place, offset in offsets.items()]
        effects = Effects()
        self.shard.commit(who, wanted, Reply(9, answered), effects, producer)
        self.run(effects)

    def decide(self, act: Callable[[Effects], Any]) -> Any:
        """Any other decision of the shard's; what it returns."""
        effects = Effects()
        result = act(effects)
        self.run(effects)
        return result
