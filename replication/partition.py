"""One partition as this broker holds it: its log, who leads it, and who waits for it to move.

Kafka's Partition. Appends and reads come through here, so that the leader's duties (epoch checks, min.insync.replicas,
the high watermark) are in one place. Whatever a reader may see moves only in `advance`, which tells the watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Protocol

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.types import TopicPartition
from pybroker.replication.leader import LeaderState
from pybroker.storage.log import AppendInfo

if TYPE_CHECKING:
    from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
    from pybroker.storage.log import Log

NO_LEADER = -1
NO_EPOCH = -1


class Watcher(Protocol):
    """Who hears when a partition's end, watermark or leadership has moved. Must not read the log in the call."""

    def partition_moved(self, partition: Partition) -> None: ...


class IsrKeeper(Protocol):
    """Asks the controller for other in-sync sets (isr.IsrChanges)."""

    lag_max_ms: int

    def consider(self, partition: Partition) -> None:
        """Followers outside the ISR may be fit to join it."""


class Partition:
    """State of one hosted partition. `leader` is None unless this broker leads it. Without an `isr_keeper` the
    controller alone changes the ISR."""

    __slots__ = (
        "bytes_in", "index", "isr", "isr_keeper", "leader", "leader_epoch", "leader_id", "local_id", "log",
        "partition_epoch", "replicas", "session", "topic", "topic_id", "watchers",
    )  # fmt: skip

    def __init__(self, topic: str, index: int, topic_id: bytes, log: Log, local_id: int) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.local_id = local_id
        self.leader: LeaderState | None = None
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.isr_keeper: IsrKeeper | None = None
        self.watchers: dict[Watcher, None] = {}
        self.session = 0  # ReplicaManager's, when the controller last said who leads
        self.bytes_in = 0  # appended since this broker hosts the partition

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.index)

    # -- leadership --------------------------------------------------------------------------------------------

    def make_leader(self, state: LeaderAndIsrPartitionState, now_ms: int) -> bool:
        """Lead from now on, as `state` says; True where that is a new leader epoch."""
        fresh = self.leader is None or state.leader_epoch > self.leader_epoch
        taken_out = set(self.isr) - set(state.isr)
        self._adopt(state)
        if fresh or self.leader is None:
            start = self.log.log_end_offset
            self.log.start_leader_epoch(state.leader_epoch)
            self.leader = LeaderState(self.local_id, state.leader_epoch, start, state.replicas, state.isr, now_ms)
        else:
            self.leader.update_replicas(state.replicas, state.isr, now_ms)
        self.leader.keep_outside(taken_out, now_ms)
        self.advance()
        return fresh

    def make_follower(self, state: LeaderAndIsrPartitionState) -> bool:
        """Follow `state.leader` (or nobody); True where leader or epoch changed. Readers waiting here are woken."""
        changed = self.leader_id != state.leader or self.leader_epoch != state.leader_epoch
        self._adopt(state)
        self.leader = None
        self.tell_watchers()
        return changed

    def resign(self) -> None:
        """This broker holds the partition no more."""
        self.leader = None
        self.leader_id = NO_LEADER
        self.tell_watchers()

    def commit_isr(self, isr: Iterable[int], partition_epoch: int) -> None:
        """The controller has written this ISR."""
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        if self.leader is not None:
            self.leader.commit_isr(self.isr)
            self.advance()

    def _adopt(self, state: LeaderAndIsrPartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = tuple(state.replicas)
        self.isr = tuple(state.isr)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Compare the leader epoch a client believes in (-1: none) with ours (KIP-320).

        Raises FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one.
        """
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            older = current_leader_epoch < self.leader_epoch
            raise KafkaError(Errors.FENCED_LEADER_EPOCH if older else Errors.UNKNOWN_LEADER_EPOCH)

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> LeaderState:
        """This broker's leader state; NOT_LEADER_OR_FOLLOWER where another leads, epoch errors as `check_epoch`."""
        self.check_epoch(current_leader_epoch)
        if self.leader is None:
            raise KafkaError(Errors.NOT_LEADER_OR_FOLLOWER)
        return self.leader

    def check_readable(self, current_leader_epoch: int) -> None:
        """A consumer that knows of replicas (Fetch 11+, KIP-392) may read here. KafkaErrors as `check_epoch`, and
        NOT_LEADER_OR_FOLLOWER where this broker follows nobody."""
        self.check_epoch(current_leader_epoch)
        if self.leader is None and self.leader_id == NO_LEADER:
            raise KafkaError(Errors.NOT_LEADER_OR_FOLLOWER)

    # -- writing -----------------------------------------------------------------------------------------------

    def append(
        self, records: memoryview, acks: int, version: int, from_client: bool = True
    ) -> AppendInfo | Awaitable[AppendInfo]:
        """Append what a client produced; `version` is the Produce version. Raises KafkaError. What this broker's own
        coordinators write is not `from_client`.

        The result says where the records lie; with acks=-1 the caller then waits until `is_committed`.
        """
        leader = self.leader
        if leader is None:
            raise KafkaError(Errors.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        if acks == -1 and len(leader.isr) < log.config.min_insync_replicas and len(leader.isr) < self.effective_min_isr:
            raise KafkaError(
                Errors.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {sorted(leader.isr)} is insufficient to satisfy the min.isr requirement "
                f"of {self.effective_min_isr} for partition {self}",
            )
        info = log.append_as_leader(records, self.leader_epoch, version=version, from_client=from_client)
        if type(info) is AppendInfo:
            self.bytes_in += info.bytes
            self.advance()
            return info
        assert not isinstance(info, AppendInfo)
        appending = asyncio.ensure_future(info)
        appending.add_done_callback(self._appended)
        return asyncio.shield(appending)  # it goes on, whether somebody waits for it or not

    def _appended(self, appending: asyncio.Future[AppendInfo]) -> None:
        if appending.exception() is None:
            self.bytes_in += appending.result().bytes
            self.advance()

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, but never more than there are replicas."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def is_committed(self, offset: int) -> bool:
        """Whether everything below `offset` is replicated. Raises NOT_LEADER_OR_FOLLOWER, and
        NOT_ENOUGH_REPLICAS_AFTER_APPEND where it is, but by too few."""
        leader = self.leader
        if leader is None:
            raise KafkaError(Errors.NOT_LEADER_OR_FOLLOWER)
        if self.log.high_watermark < offset:
            return False
        if len(leader.isr) < self.effective_min_isr:
            raise KafkaError(Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return True

    def advance(self) -> None:
        """The log's end or a follower has moved: move the high watermark as far as it may go, and tell the watchers."""
        self._raise_watermark()
        if self.watchers:
            self.tell_watchers()

    def _raise_watermark(self) -> bool:
        """As far as it may go; whether it has moved."""
        leader, log = self.leader, self.log
        if leader is None:
            return False
        end, before = log.log_end_offset, log.high_watermark
        mark = leader.high_watermark(end, before) if leader.followers else end
        if mark <= before:
            return False
        log.update_high_watermark(mark)
        return True

    def followed(self, size: int) -> None:
        """`size` bytes came from the leader, or the high watermark has moved: consumers may be reading here."""
        self.bytes_in += size
        if self.watchers:
            self.tell_watchers()

    def tell_watchers(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.partition_moved(self)

    def delete_records(self, offset: int) -> int:
        """Move the log's start to `offset` (-1: the high watermark); the partition's low watermark.

        Raises OFFSET_OUT_OF_RANGE above the high watermark, POLICY_VIOLATION where nothing may be deleted.
        """
        leader = self.check_leader()
        log = self.log
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(Errors.POLICY_VIOLATION)
        target = log.high_watermark if offset == -1 else offset
        if not 0 <= target <= log.high_watermark:
            raise KafkaError(Errors.OFFSET_OUT_OF_RANGE)
        log.maybe_increment_log_start_offset(target)
        self.tell_watchers()
        return leader.low_watermark(log.log_start_offset)

    # -- reading -----------------------------------------------------------------------------------------------

    def record_follower_fetch(self, replica_id: int, fetch_offset: int, log_start_offset: int, now_ms: int) -> None:
        """A follower's fetch tells how far it is, once it is known that its log agrees with ours up to there.
        NOT_LEADER_OR_FOLLOWER where it holds no replica."""
        leader = self.check_leader()
        progress = leader.followers.get(replica_id)
        if progress is None:
            raise KafkaError(Errors.NOT_LEADER_OR_FOLLOWER)
        waited_for = progress.log_start_offset != log_start_offset  # by deletions
        progress.record_fetch(fetch_offset, log_start_offset, self.log.log_end_offset, now_ms)
        keeper = self.isr_keeper
        if keeper is not None and replica_id not in leader.maximal_isr:
            leader.judge_outsider(replica_id, now_ms, keeper.lag_max_ms)
            keeper.consider(self)
        if (self._raise_watermark() or waited_for) and self.watchers:
            self.tell_watchers()

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        """(largest epoch not above `epoch`, where it ends), (-1, -1) where unknown (KIP-101)."""
        self.check_leader(current_leader_epoch)
        return self.log.end_offset_for_epoch(epoch)
