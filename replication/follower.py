"""What a follower does with one partition: where it fetches, what it cuts off, how far it is committed. No I/O but the
log's own; the time is an argument. Kafka's AbstractFetcherThread and ReplicaFetcherThread, for one partition.

A follower's log must be the beginning of its leader's. Where it is not, it cuts back to where the leader epochs of both
part (KIP-101, KIP-279): told in the answer to a Fetch that names the epoch of the last record (12 and later, KIP-595),
asked for with OffsetForLeaderEpoch before. A log that knows no epochs is cut to its high watermark.
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import Enum
from typing import Protocol

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import EpochEndOffset, PartitionData
from pybroker.storage.log_append import AppendInfo

NO_EPOCH = -1
FIRST_RETRY_MS = 50


class ReplicaLog(Protocol):
    """What a follower needs of a log: storage.log.Log, or a model of one."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def latest_epoch(self) -> int: ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]: ...

    def append_as_follower(self, records: memoryview) -> AppendInfo | Awaitable[AppendInfo]: ...

    def truncate_to(self, offset: int) -> bool: ...

    def truncate_fully_and_start_at(self, offset: int) -> None: ...

    def update_high_watermark(self, offset: int) -> None: ...

    def maybe_increment_log_start_offset(self, offset: int) -> bool: ...


class State(Enum):
    TRUNCATING = "its log may have to be cut before it fetches"
    FETCHING = "fetches from its log's end"
    WRITING = "what it fetched is being written to a slow disk"
    LOCATING = "its log's end is not in the leader's log: asks where that begins and ends"
    BACKING_OFF = "failed, and tries again after a pause"


class Event(Enum):
    TRUNCATED = "the log is the beginning of the leader's, or the next fetch will tell"
    WRITE_BEGUN = "its disk is slow"
    WRITTEN = "what was fetched is in the log"
    OUT_OF_RANGE = "the leader has no such offset"
    LOCATED = "the log was cut or emptied to fit into the leader's"
    FAILED = "the leader answered with an error, or did not answer; or the log can't be written"
    RETRY = "the pause is over"


_ACTIVE = (State.TRUNCATING, State.FETCHING, State.WRITING, State.LOCATING)
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.TRUNCATING, Event.TRUNCATED): State.FETCHING,
    (State.FETCHING, Event.WRITE_BEGUN): State.WRITING,
    (State.WRITING, Event.WRITTEN): State.FETCHING,
    (State.FETCHING, Event.OUT_OF_RANGE): State.LOCATING,
    (State.LOCATING, Event.LOCATED): State.FETCHING,
    (State.BACKING_OFF, Event.RETRY): State.TRUNCATING,
    (State.BACKING_OFF, Event.FAILED): State.BACKING_OFF,
    **{(state, Event.FAILED): State.BACKING_OFF for state in _ACTIVE},
}


class Follower:
    """One partition's follower in one leader epoch.

    `tells_epochs`: the leader compares epochs in a Fetch (version 12 and later). `backoff_ms` is
    replica.fetch.backoff.ms: pauses grow up to it, from 50 ms, as a leader is often only a moment behind the
    controller.
    """

    __slots__ = (
        "_backoff_ms", "_failures", "error", "in_sync", "leader_epoch", "log", "retry_ms", "state", "tells_epochs",
    )  # fmt: skip

    def __init__(
        self, log: ReplicaLog, leader_epoch: int, *, tells_epochs: bool = True, backoff_ms: int = 1000
    ) -> None:
        self.log = log
        self.leader_epoch = leader_epoch
        self.tells_epochs = tells_epochs
        self.state = State.TRUNCATING
        self.retry_ms = 0  # BACKING_OFF until then
        self.error = Errors.NONE  # the last one, until a fetch succeeds
        self.in_sync = False  # as of the last fetch: all that the leader knows to be replicated is here
        self._failures = 0
        self._backoff_ms = backoff_ms

    @property
    def last_fetched_epoch(self) -> int:
        """Leader epoch of the log's last record; -1 for none."""
        return self.log.latest_epoch

    def prepare(self, now_ms: int) -> State:
        """Go on as far as that needs nobody else; the state to act on."""
        if self.state is State.BACKING_OFF and now_ms >= self.retry_ms:
            self._on(Event.RETRY)
        if self.state is State.TRUNCATING:
            if self.log.latest_epoch == NO_EPOCH:
                self._cut(self.log.high_watermark, Event.TRUNCATED, now_ms)
            elif self.tells_epochs:
                self._on(Event.TRUNCATED)
        return self.state

    def on_epoch_end(self, error_code: int, epoch: int, end_offset: int, now_ms: int) -> None:
        """The leader's answer to OffsetForLeaderEpoch with our `last_fetched_epoch`; asked again while TRUNCATING."""
        if self.state is not State.TRUNCATING:
            return
        if error_code:
            self.failed(Errors(error_code), now_ms)
        elif end_offset < 0:  # the leader knows no such epoch
            self._cut(self.log.high_watermark, Event.TRUNCATED, now_ms)
        else:
            offset, agreed = self._common_end(epoch, end_offset)
            self._cut(offset, Event.TRUNCATED if agreed else None, now_ms)

    def on_fetch(self, data: PartitionData, asked_offset: int, now_ms: int) -> int | Awaitable[AppendInfo]:
        """The leader's answer for this partition to a Fetch at `asked_offset`; bytes appended.

        Where the append has to wait it is returned, and `on_written` to be told of its end. An answer to an older
        question (the log has been cut or is led here since) changes nothing.
        """
        log = self.log
        if self.state is not State.FETCHING or asked_offset != log.log_end_offset:
            return 0
        if data.error_code == Errors.OFFSET_OUT_OF_RANGE:
            self._on(Event.OUT_OF_RANGE)
            return 0
        if data.error_code:
            self.failed(Errors(data.error_code), now_ms)
            return 0
        self.error, self._failures = Errors.NONE, 0
        diverging = data.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            self._diverged(diverging, now_ms)
            return 0
        try:
            info = log.append_as_follower(memoryview(data.records)) if data.records else None
        except KafkaError as error:
            self.failed(error.code, now_ms)
            return 0
        if info is None or isinstance(info, AppendInfo):
            return self._written(data, info, now_ms)
        self._on(Event.WRITE_BEGUN)
        return info

    def on_written(self, data: PartitionData, outcome: AppendInfo | KafkaError, now_ms: int) -> int:
        """The append that `on_fetch` began has ended like this; bytes appended."""
        if isinstance(outcome, KafkaError):
            self.failed(outcome.code, now_ms)
            return 0
        self._on(Event.WRITTEN)
        return self._written(data, outcome, now_ms)

    def _written(self, data: PartitionData, info: AppendInfo | None, now_ms: int) -> int:
        try:
            self._follow_offsets(data.high_watermark, data.log_start_offset)
        except KafkaError as error:
            self.failed(error.code, now_ms)
            return 0
        return 0 if info is None else info.bytes

    def _diverged(self, leader: EpochEndOffset, now_ms: int) -> None:
        before = self.log.log_end_offset, self.log.latest_epoch
        self._cut(self._common_end(leader.epoch, leader.end_offset)[0], None, now_ms)
        if self.state is State.FETCHING and before == (self.log.log_end_offset, self.log.latest_epoch):
            self.failed(Errors.UNKNOWN_SERVER_ERROR, now_ms)  # asking the same again would bring the same

    def _follow_offsets(self, leader_high_watermark: int, leader_start: int) -> None:
        """What the leader has committed is committed here as far as we hold it. It never goes back: a new leader may
        know less of it than an old one has told us, but holds it."""
        log = self.log
        mark = min(leader_high_watermark, log.log_end_offset)
        if mark > log.high_watermark:
            log.update_high_watermark(mark)
        if leader_start > log.log_start_offset:
            log.maybe_increment_log_start_offset(min(leader_start, log.high_watermark))

    def on_located(self, leader_start: int, leader_end: int, now_ms: int) -> None:
        """The leader's answer to ListOffsets: earliest and latest offset.

        A leader that ends below us was elected uncleanly: what it lacks is gone. Where its log begins above our end,
        ours has nothing of use.
        """
        if self.state is not State.LOCATING:
            return
        if leader_end < self.log.log_end_offset:
            self._cut(leader_end, Event.LOCATED, now_ms)
        elif leader_start > self.log.log_end_offset:
            try:
                self.log.truncate_fully_and_start_at(leader_start)
                self._on(Event.LOCATED)
            except KafkaError as error:
                self.failed(error.code, now_ms)
        else:
            self._on(Event.LOCATED)

    def failed(self, error: Errors, now_ms: int) -> None:
        """The leader answered with an error or could not be asked, or the log can't be written, as on a full disk: try
        again after a pause. (Where its log directory has failed, it is not followed any more.)"""
        self.error = error
        self.retry_ms = now_ms + min(self._backoff_ms, FIRST_RETRY_MS << min(self._failures, 20))
        self._failures += 1
        self._on(Event.FAILED)

    def _common_end(self, epoch: int, end_offset: int) -> tuple[int, bool]:
        """Where to cut, given the end of the leader's largest epoch not above ours; whether both know that epoch."""
        log = self.log
        offset = min(end_offset, log.log_end_offset)
        if epoch < 0:
            return offset, True
        own_epoch, own_end = log.end_offset_for_epoch(epoch)
        if own_end < 0:
            return offset, True
        return min(offset, own_end), own_epoch == epoch

    def _cut(self, offset: int, then: Event | None, now_ms: int) -> None:
        try:
            self.log.truncate_to(offset)
        except KafkaError as error:
            self.failed(error.code, now_ms)
            return
        if then is not None:
            self._on(then)

    def _on(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]
