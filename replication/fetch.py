"""Reading partitions for a Fetch, and waiting until there is enough to answer with (Kafka's DelayedFetch).

A Fetch is a list of asks, one a partition. Every ask watches its partition; when what it may see has moved it marks
itself ready. So a fetch that waits costs nothing, and in a session (KIP-227) a partition where nothing happened costs
nothing either: only ready asks are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.later import Later
from pybroker.protocol.messages.fetch import AbortedTransaction, EpochEndOffset, FetchPartition, PartitionData
from pybroker.protocol.timer import Timer, TimerTask
from pybroker.protocol.uuids import ZERO_UUID
from pybroker.replication.leader import NEVER_MS
from pybroker.replication.partition import Partition
from pybroker.replication.quotas import ReplicationQuota
from pybroker.storage.files import WouldBlock
from pybroker.storage.log import Log

READ_COMMITTED = 1
CONSUMER = -1
NO_BYTES: bytes = b""


class Ready(Protocol):
    """Where an ask reports that it is worth reading again."""

    def ask_ready(self, ask: Ask) -> None: ...


class Ask:
    """One partition of a Fetch: what is wanted and, in a session, what was answered last.

    `topic` is "" where a topic id is not known (yet).
    """

    __slots__ = (
        "at_end", "bytes_seen", "end_seen", "epoch_seen", "held_back", "index", "last_fetched_epoch", "leader_epoch",
        "log_start_offset", "max_bytes", "offset", "owner", "sees_less", "sent_log_start", "sent_watermark", "topic",
        "topic_id", "watching",
    )  # fmt: skip

    def __init__(self, topic: str, topic_id: bytes, wanted: FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = wanted.partition
        self.watching: Partition | None = None
        self.owner: Ready | None = None
        self.at_end = False  # the last read found nothing because there is nothing, not for want of room
        self.held_back = False  # or because of a throttle
        self.bytes_seen = 0
        self.end_seen = 0
        self.sees_less = False  # than the log holds
        self.epoch_seen = -1
        self.sent_watermark = -1
        self.sent_log_start = -1
        self.offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset

    def take(self, topic: str, wanted: FetchPartition) -> None:
        """Take over what a further request of the session says of the same partition."""
        self.topic = topic or self.topic
        self.offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset

    def watch(self, partition: Partition, owner: Ready) -> None:
        """Hear of the partition's moves until `unwatch`."""
        self.owner = owner
        if self.watching is not partition:
            self.unwatch()
            self.owner = owner
            self.watching = partition
            partition.watchers[self] = None

    def unwatch(self) -> None:
        if self.watching is not None:
            self.watching.watchers.pop(self, None)
            self.watching = None
        self.owner = None

    def partition_moved(self, partition: Partition) -> None:
        self.at_end = False  # a read that is not answered yet does not know of this
        if self.owner is not None:
            self.owner.ask_ready(self)


class FetchParameters:
    """What a Fetch says once for all its partitions."""

    __slots__ = (
        "any_replica", "hard_limit", "is_follower", "is_new", "isolation", "max_bytes", "max_wait_ms", "min_bytes",
        "rack", "replica_id", "with_epochs",
    )  # fmt: skip

    def __init__(
        self, replica_id: int, max_wait_ms: int, min_bytes: int, max_bytes: int, isolation: int, hard_limit: bool,
        with_epochs: bool, any_replica: bool = False, rack: str = "",
    ) -> None:  # fmt: skip
        self.replica_id = replica_id
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.hard_limit = hard_limit  # Fetch 0-2: a first batch above the limit is cut, not sent whole
        self.with_epochs = with_epochs  # Fetch 12+: answer a diverging epoch
        self.any_replica = any_replica  # Fetch 11+: consumers may read from followers
        self.rack = rack  # the consumer's client.rack, "" for none
        self.is_follower = replica_id >= 0
        self.is_new = True  # not read yet: the offsets say how far a follower is now

    def visible_end(self, log: Log) -> int:
        """How far this fetch may see: a follower the whole log, a consumer what is replicated, or decided too."""
        if self.replica_id >= 0:
            return log.log_end_offset
        return log.last_stable_offset if self.isolation == READ_COMMITTED else log.high_watermark


class Round:
    """One pass over the asks: answers in their order, how many bytes, how many of those are of throttled replicas, and
    whether anything speaks against waiting."""

    __slots__ = ("answers", "bytes", "throttled_bytes", "urgent")

    def __init__(self) -> None:
        self.answers: list[tuple[Ask, PartitionData]] = []
        self.bytes = self.throttled_bytes = 0
        self.urgent = False

    def release(self) -> None:
        """Give up the slices, or what was made of them, that will not be sent."""
        for _, data in self.answers:
            if not isinstance(data.records, bytes | bytearray | None):
                data.records.release()


Lookup = Callable[[str, int], Partition]
Prefer = Callable[[Partition, int, str], int | None]


class PartitionReader:
    """Reads asks from the partitions that `lookup` finds (ReplicaManager.partition)."""

    __slots__ = ("_last_fetch_ms", "_lookup", "_now_ms", "_prefer", "_quota")

    def __init__(
        self, lookup: Lookup, now_ms: Callable[[], int], prefer: Prefer | None = None,
        quota: ReplicationQuota | None = None,
    ) -> None:  # fmt: skip
        """`prefer` names the replica that a consumer had better read from, None for this one (KIP-392). `quota` is the
        leaders' throttle."""
        self._lookup = lookup
        self._now_ms = now_ms
        self._prefer = prefer
        self._quota = quota
        self._last_fetch_ms: dict[int, int] = {}

    def last_fetch_ms(self, replica_id: int) -> int:
        """When a broker last fetched anything here."""
        return self._last_fetch_ms.get(replica_id, NEVER_MS)

    def read(self, asks: Iterable[Ask], parameters: FetchParameters, owner: Ready, *, blocking: bool = False) -> Round:
        """Read every ask within the request's limits (KIP-74). WouldBlock where a read isn't in the page cache."""
        result = Round()
        left = parameters.max_bytes
        if parameters.is_follower and parameters.is_new:
            self._last_fetch_ms[parameters.replica_id] = self._now_ms()
        try:
            for ask in asks:
                min_one = not parameters.hard_limit and result.bytes == 0
                data = self._read_one(ask, parameters, owner, left, min_one, blocking)
                result.answers.append((ask, data))
                size = len(data.records or NO_BYTES)
                result.bytes += size
                left -= size
                if size and self._quota is not None and parameters.is_follower:
                    result.throttled_bytes += size if self._quota.covers(ask.topic, ask.index) else 0
                if data.error_code or data.diverging_epoch.epoch >= 0 or data.preferred_read_replica >= 0:
                    result.urgent = True
        except WouldBlock:
            result.release()
            raise
        parameters.is_new = False
        return result

    def _read_one(
        self, ask: Ask, parameters: FetchParameters, owner: Ready, left: int, min_one: bool, blocking: bool
    ) -> PartitionData:
        ask.at_end = ask.held_back = False
        try:
            if not ask.topic and ask.topic_id is not ZERO_UUID:
                raise KafkaError(Errors.UNKNOWN_TOPIC_ID)
            partition = self._lookup(ask.topic, ask.index)
            if parameters.any_replica and not parameters.is_follower:
                partition.check_readable(ask.leader_epoch)
            else:
                partition.check_leader(ask.leader_epoch)
            ask.watch(partition, owner)
            ask.epoch_seen = partition.leader_epoch
            if ask.max_bytes < 0 or parameters.max_bytes < 0:
                raise KafkaError(Errors.UNKNOWN_SERVER_ERROR)
            return self._read_log(ask, partition, parameters, left, min_one, blocking)
        except KafkaError as error:
            return PartitionData(
                partition_index=ask.index, error_code=error.code, high_watermark=-1, records=NO_BYTES,
                aborted_transactions=None,
            )  # fmt: skip

    def _holds_back(self, partition: Partition, replica_id: int) -> bool:
        """Whether the throttle lets this follower have nothing now; one in sync is never held back."""
        quota, leader = self._quota, partition.leader
        if quota is None or leader is None or replica_id in leader.isr:
            return False
        return quota.holds_back(partition.topic, partition.index)

    def _read_log(
        self, ask: Ask, partition: Partition, parameters: FetchParameters, left: int, min_one: bool, blocking: bool
    ) -> PartitionData:
        log = partition.log
        committed = parameters.isolation == READ_COMMITTED
        watermark, stable, start = log.high_watermark, log.last_stable_offset, log.log_start_offset
        end = parameters.visible_end(log)
        data = PartitionData(
            partition_index=ask.index, high_watermark=watermark, last_stable_offset=stable, log_start_offset=start,
            records=NO_BYTES, aborted_transactions=None,
        )  # fmt: skip
        ask.bytes_seen, ask.end_seen, ask.sees_less = partition.bytes_in, end, end != log.log_end_offset
        at_end = ask.at_end = ask.offset == end
        if parameters.with_epochs and ask.last_fetched_epoch >= 0:
            if ask.last_fetched_epoch == log.latest_epoch:
                epoch, epoch_end = log.latest_epoch, log.log_end_offset
            else:
                epoch, epoch_end = log.end_offset_for_epoch(ask.last_fetched_epoch)
            if epoch_end < 0 and parameters.is_follower:
                raise KafkaError(Errors.OFFSET_OUT_OF_RANGE)  # nothing to compare with: it has to cut its log
            if epoch_end >= 0 and (epoch < ask.last_fetched_epoch or epoch_end < ask.offset):
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=epoch_end)
                return data
        if parameters.is_follower and start <= ask.offset <= end:
            if parameters.is_new:
                # Only now: a follower whose log is another one has not got what its offset claims.
                partition.record_follower_fetch(
                    parameters.replica_id, ask.offset, ask.log_start_offset, self._now_ms()
                )
                data.high_watermark, data.last_stable_offset = log.high_watermark, log.last_stable_offset
            if self._holds_back(partition, parameters.replica_id):
                ask.held_back = True
                return data
        elif parameters.rack and self._prefer is not None and partition.leader is not None:
            better = self._prefer(partition, ask.offset, parameters.rack)
            if better is not None:
                data.preferred_read_replica = better
                return data
        judged = committed and not parameters.is_follower
        if judged:
            data.aborted_transactions = []
        if at_end:
            return data
        limit = min(ask.max_bytes, max(left, 0))
        read = log.read(ask.offset, limit, max_offset=end, min_one=min_one, blocking=blocking)
        data.records = read.records
        if judged and len(read.records):
            data.aborted_transactions = [
                AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first in log.aborted_in(read)
            ]
        return data


class WaitingFetch:
    """A Fetch that had too little to answer with: waits for its asks to become ready, or for its time to run out.

    `result` is resolved with the Round to answer with, or with the WouldBlock that `reread`, which reads again, raised.
    """

    __slots__ = ("_bytes", "_loop", "_min_bytes", "_parameters", "_reread", "_task", "_woken", "result")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timer: Timer, first: Round, parameters: FetchParameters,
        reread: Callable[[], Round],
    ) -> None:  # fmt: skip
        self.result: Later[Round | WouldBlock] = Later()
        self._loop = loop
        self._bytes = first.bytes
        self._min_bytes = parameters.min_bytes
        self._parameters = parameters
        self._reread = reread
        self._woken = False
        self._task: TimerTask = timer.schedule(parameters.max_wait_ms, self._expire)

    def progress(self, ask: Ask) -> None:
        """An ask's partition has moved: answer if that may be enough. Errors and moved leaders answer at once."""
        partition = ask.watching
        if partition is None or partition.leader_epoch != ask.epoch_seen or partition.leader_id < 0:
            self._wake()
            return
        if ask.held_back:
            return  # the next Fetch may have it
        end, log_end = self._parameters.visible_end(partition.log), partition.log.log_end_offset
        if end <= ask.end_seen:
            return  # what was appended is not replicated yet
        # Bytes are counted as they are appended; where some of them cannot be seen, only a read can tell how many can.
        self._bytes += partition.bytes_in - ask.bytes_seen
        ask.bytes_seen = partition.bytes_in
        if self._bytes >= self._min_bytes or end != log_end or ask.sees_less:
            self._wake()

    def _wake(self) -> None:
        # Not in the appender's own call: several appends of one wake-up of the loop make one answer.
        if not self._woken and not self.result.done():
            self._woken = True
            self._loop.call_soon(self._retry)

    def _retry(self) -> None:
        self._woken = False
        if self.result.done():
            return
        try:
            again = self._reread()
        except WouldBlock as cold:
            self._finish(cold)
            return
        if again.bytes >= self._min_bytes or again.urgent:
            self._finish(again)
        else:
            self._bytes = again.bytes
            again.release()

    def _expire(self) -> None:
        if self.result.done():
            return
        try:
            self._finish(self._reread())
        except WouldBlock as cold:
            self._finish(cold)

    def _finish(self, outcome: Round | WouldBlock) -> None:
        self._task.cancel()
        self.result.set_result(outcome)
