"""What a partition's leader knows of its replicas, and what follows from it. No I/O: time and offsets are arguments.

High watermark: the smallest log end offset over the maximal ISR, which is the committed ISR plus what an expansion or
shrink in flight would keep; it never goes back within a leader epoch (Kafka's Partition, KIP-497). It waits as well for
followers that have caught up and are about to join: under load they would not reach it otherwise. Not so for one that
the controller has just taken out of the ISR or not let in: it is leaving, and fetches a moment longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

NO_OFFSET = -1
NEVER_MS = -(1 << 62)
#: How long a follower stays outside that the controller does not want in the ISR.
OUTSIDE_MS = 2000


class FollowerProgress:
    """How far one follower has come, from its fetches (Kafka's Replica)."""

    __slots__ = (
        "last_caught_up_ms", "last_fetch_ms", "leader_end_at_last_fetch", "log_end_offset", "log_start_offset",
        "outside_until_ms",
    )  # fmt: skip

    def __init__(self, now_ms: int, caught_up: bool) -> None:
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.leader_end_at_last_fetch = NO_OFFSET
        self.last_fetch_ms = NEVER_MS
        self.last_caught_up_ms = now_ms if caught_up else NEVER_MS
        self.outside_until_ms = NEVER_MS

    def record_fetch(self, fetch_offset: int, log_start_offset: int, leader_end: int, now_ms: int) -> None:
        """A fetch at `fetch_offset` says that all before it is in the follower's log.

        A follower that reaches what was the end at its previous fetch was caught up then, however fast the leader
        grows.
        """
        if fetch_offset >= leader_end:
            self.last_caught_up_ms = now_ms
        elif fetch_offset >= self.leader_end_at_last_fetch:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.leader_end_at_last_fetch = leader_end
        self.last_fetch_ms = now_ms


class LeaderState:
    """The leader's view of one partition in one leader epoch.

    `isr` is the committed in-sync set, `in_flight` the one proposed to the controller and not yet answered.
    """

    __slots__ = (
        "epoch_start_offset", "followers", "holding", "in_flight", "isr", "joining", "leader_epoch", "local_id",
        "maximal_isr",
    )  # fmt: skip

    def __init__(
        self, local_id: int, leader_epoch: int, epoch_start_offset: int, replicas: Iterable[int], isr: Iterable[int],
        now_ms: int,
    ) -> None:  # fmt: skip
        self.local_id = local_id
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self.isr = frozenset(isr)
        self.in_flight: frozenset[int] | None = None
        self.maximal_isr = self.isr
        self.joining: frozenset[int] = frozenset()  # outside the maximal ISR, but caught up
        self.holding = self.isr  # those whose log ends hold the high watermark back
        self.followers = {
            replica: FollowerProgress(now_ms, replica in self.isr) for replica in replicas if replica != local_id
        }

    def update_replicas(self, replicas: Iterable[int], isr: Iterable[int], now_ms: int) -> None:
        """A new assignment or ISR within the same leadership; progress of the replicas that stay is kept."""
        wanted = set(replicas) - {self.local_id}
        self.commit_isr(isr)
        for gone in self.followers.keys() - wanted:
            del self.followers[gone]
        self.joining &= wanted
        for new in wanted - self.followers.keys():
            self.followers[new] = FollowerProgress(now_ms, new in self.isr)

    def propose_isr(self, isr: Iterable[int]) -> None:
        """An ISR change is on its way to the controller: until it is answered the larger set holds the watermark."""
        self.in_flight = frozenset(isr)
        self.maximal_isr = self.isr | self.in_flight
        self._hold()

    def commit_isr(self, isr: Iterable[int]) -> None:
        """The controller's word on the ISR; ends whatever was in flight."""
        self.isr = frozenset(isr)
        self.in_flight = None
        self.maximal_isr = self.isr
        self._hold()

    def _hold(self) -> None:
        self.joining -= self.maximal_isr
        self.holding = self.maximal_isr | self.joining

    def judge_outsider(self, replica: int, now_ms: int, lag_max_ms: int) -> None:
        """A follower outside the ISR holds the watermark as long as it keeps up, so that it can join."""
        if replica in self.maximal_isr:
            return
        progress = self.followers[replica]
        keeps_up = now_ms - progress.last_caught_up_ms <= lag_max_ms and now_ms >= progress.outside_until_ms
        if keeps_up != (replica in self.joining):
            self.joining ^= {replica}
            self._hold()

    def keep_outside(self, replicas: Iterable[int], now_ms: int) -> None:
        """The controller does not want these in the ISR."""
        unwanted = self.followers.keys() & set(replicas)
        for replica in unwanted:
            self.followers[replica].outside_until_ms = now_ms + OUTSIDE_MS
        self.joining -= unwanted
        self._hold()

    def high_watermark(self, local_end: int, current: int) -> int:
        """The high watermark given this log's end offset; never below `current`."""
        lowest = local_end
        for replica, progress in self.followers.items():
            if replica in self.holding and progress.log_end_offset < lowest:
                lowest = progress.log_end_offset
        return max(lowest, current)

    def low_watermark(self, local_start: int, is_alive: Callable[[int], bool] = lambda _: True) -> int:
        """The smallest log start offset of the replicas that live, which DeleteRecords waits for."""
        starts = (progress.log_start_offset for replica, progress in self.followers.items() if is_alive(replica))
        return min([local_start, *starts])

    def out_of_sync(self, local_end: int, now_ms: int, lag_max_ms: int) -> frozenset[int]:
        """In-sync followers that lag: not at the end, and not caught up for longer than replica.lag.time.max.ms."""
        if self.in_flight is not None:
            return frozenset()
        return frozenset(
            replica
            for replica, progress in self.followers.items()
            if replica in self.isr
            and progress.log_end_offset != local_end
            and now_ms - progress.last_caught_up_ms > lag_max_ms
        )

    def fetched_lately(self, replica: int, local_end: int, at_ms: int) -> None:
        """The replica fetched at `at_ms`, from this broker if not from this partition, whose end it may have already:
        in a session a partition without news is not looked at."""
        progress = self.followers[replica]
        if progress.log_end_offset == local_end:
            progress.last_caught_up_ms = max(progress.last_caught_up_ms, at_ms)

    def may_join_isr(self, replica: int, high_watermark: int, now_ms: int) -> bool:
        """A follower outside the ISR joins once it has the high watermark and the start of this leader's epoch."""
        progress = self.followers.get(replica)
        return (
            progress is not None
            and self.in_flight is None
            and replica not in self.isr
            and now_ms >= progress.outside_until_ms
            and progress.log_end_offset >= high_watermark
            and progress.log_end_offset >= self.epoch_start_offset
        )
