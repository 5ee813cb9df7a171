"""Brings partitions that this broker follows from their leader, over one connection and with one fetch session.

Kafka's ReplicaFetcherThread. What is done with a partition's answer is follower.Follower's to say; this is the talking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pybroker.protocol.clock import Clock
from pybroker.protocol.connection import BrokerConnection
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import FetchResponse, PartitionData
from pybroker.protocol.messages.list_offsets import ListOffsetsResponse
from pybroker.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from pybroker.protocol.pace import Pace
from pybroker.protocol.schema import Message
from pybroker.protocol.types import TopicPartition
from pybroker.replication.fetch_requests import BY_ID_FROM, SESSION_ERRORS, FetchRequests, FetchSettings
from pybroker.replication.followed import EARLIEST, LATEST, Followed, epochs_request, offsets_of, offsets_request
from pybroker.replication.follower import Follower, State
from pybroker.replication.partition import Partition
from pybroker.replication.quotas import ReplicationQuota
from pybroker.storage.log_append import AppendInfo

logger = logging.getLogger(__name__)

DIVERGENCE_BY_FETCH = 12
WAIT_BESIDE_WRITES_MS = 20  # a Fetch waits no longer while others are being written, which are to be in the next

#: Errors of a leader that has not heard yet what the controller told this broker.
BEHIND = frozenset({
    Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.UNKNOWN_TOPIC_ID, Errors.UNKNOWN_LEADER_EPOCH,
    Errors.NOT_LEADER_OR_FOLLOWER, Errors.FENCED_LEADER_EPOCH,
})  # fmt: skip
#: A connection to a broker for a client id, None while nobody knows where that broker is.
Connect = Callable[[int, str], BrokerConnection | None]


_Rows = dict[Followed, None]
_Handler = Callable[[Any], None]


class LeaderFetcher:
    """Everything that one fetcher number (see fetchers.ReplicaFetchers) follows at one leader.

    It runs in rounds of questions, each of which the answer to the one before begins: OffsetForLeaderEpoch and
    ListOffsets for partitions that need them, then a Fetch. No tasks: a follower's record is committed when its next
    Fetch arrives, so the way from an answer to the next question is all in one call. A round looks only at partitions
    that something has happened to.
    """

    def __init__(
        self, leader_id: int, number: int, settings: FetchSettings, connect: Connect, clock: Clock,
        broker_epoch: Callable[[], int], quota: ReplicationQuota | None = None,
    ) -> None:  # fmt: skip
        self._leader_id = leader_id
        self._client_id = f"broker-{settings.broker_id}-fetcher-{number}"
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._quota = quota
        self._loop = asyncio.get_running_loop()
        self._connection: BrokerConnection | None = None
        self._requests = FetchRequests(settings, broker_epoch())
        self._followed: dict[TopicPartition, Followed] = {}
        self._by_key: dict[tuple[str | bytes, int], Followed] = {}  # by name, and by topic id, and index
        self._due: _Rows = {}  # something has happened to them since the last round
        self._truncating: _Rows = {}
        self._writing: _Rows = {}
        self._locating: _Rows = {}
        self._pausing: _Rows = {}
        self._in = {
            State.TRUNCATING: self._truncating, State.WRITING: self._writing, State.LOCATING: self._locating,
            State.BACKING_OFF: self._pausing,
        }  # no Fetch asks for these, but they come back
        self._held_back: _Rows = {}  # they could be fetched, but for the throttle
        self._busy = False  # a question is out, or its answer is being dealt with
        self._next: asyncio.Handle | None = None  # the next round, where none is under way
        self._reachable = True

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def partitions(self) -> list[Partition]:
        return [row.partition for row in self._followed.values()]

    def add(self, partition: Partition) -> None:
        self.remove(partition.topic_partition)
        follower = Follower(
            partition.log,
            partition.leader_epoch,
            tells_epochs=self._settings.version >= DIVERGENCE_BY_FETCH,
            backoff_ms=self._settings.backoff_ms,
        )
        row = self._followed[partition.topic_partition] = Followed(partition, follower)
        self._by_key[partition.topic, partition.index] = self._by_key[partition.topic_id, partition.index] = row
        self._due[row] = None
        self._begin_soon()

    def remove(self, at: TopicPartition) -> None:
        row = self._followed.pop(at, None)
        if row is not None:
            topic, topic_id, index = row.key
            del self._by_key[topic, index]
            self._by_key.pop((topic_id, index), None)  # topics without an id share one
            for rows in (self._due, self._held_back, *self._in.values()):
                rows.pop(row, None)
            self._requests.drop(row.key)
            self._begin_soon()

    def close(self) -> None:
        self._followed.clear()
        self._by_key.clear()
        self._disconnect()
        if self._next is not None:
            self._next.cancel()

    # -- one round after the other ------------------------------------------------------------------------------

    def _begin_soon(self) -> None:
        if not self._busy:
            self._schedule(self._loop.call_soon(self._begin))

    def _schedule(self, handle: asyncio.Handle) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = handle

    def _begin(self) -> None:
        self._next = None
        if not self._busy:
            self._guarded(self._round, None)

    def _guarded(self, step: _Handler, argument: Any) -> None:
        try:
            step(argument)
        except OSError as error:
            self._unreachable(error)
        except Exception:
            # One answer that can't be dealt with must not end replication; nor may it be asked for without rest.
            logger.exception("Fetching from broker %d failed", self._leader_id)
            self._unreachable(ConnectionError("see above"))

    def _round(self, _: None) -> None:
        self._prepare()
        self._truncate()

    def _prepare(self) -> None:
        """Go on with every partition as far as that needs nobody else, and sort them by what it needs then."""
        now = self._clock.monotonic_ms()
        if self._pausing:
            over = [row for row in self._pausing if row.follower.retry_ms <= now]
            for row in over:
                del self._pausing[row]
            self._due.update(dict.fromkeys(over))
        if self._held_back:
            self._due.update(self._held_back)
            self._held_back.clear()
        throttled = self._quota is not None and self._quota.exceeded
        if throttled:  # it holds for those too that the leader has been asked for already
            self._due.update(dict.fromkeys(filter(self._holds_back, self._followed.values())))
        for row in self._due:
            follower, log = row.follower, row.partition.log
            state = follower.prepare(now)
            if throttled and state is State.FETCHING and self._holds_back(row):
                self._requests.drop(row.key)
                self._held_back[row] = None
            elif state is State.FETCHING:
                row.asked = offset = log.log_end_offset
                wanted = follower.leader_epoch, offset, follower.last_fetched_epoch, log.log_start_offset
                self._requests.want(row.key, wanted)
            else:
                self._requests.drop(row.key)
                if state in self._in:
                    self._in[state][row] = None
        self._due.clear()

    def _holds_back(self, row: Followed) -> bool:
        """Whether the throttle lets nothing be fetched of it now; what is in sync is never held back."""
        quota, partition = self._quota, row.partition
        return quota is not None and not row.follower.in_sync and quota.holds_back(partition.topic, partition.index)

    def _ask(self, request: Message, version: int, then: _Handler) -> None:
        """`then` is called with the response. OSError where it can't be asked."""
        if self._connection is None:
            self._connection = self._connect(self._leader_id, self._client_id)
            self._requests.broker_epoch = self._broker_epoch()
        if self._connection is None:
            raise ConnectionError("nobody has told where it is")
        self._busy = True
        self._connection.ask(request, version, partial(self._answered, self._connection, then))

    def _answered(self, connection: BrokerConnection | None, then: _Handler, outcome: Any) -> None:
        if connection is not self._connection:
            return  # it was given up
        self._busy = False
        if isinstance(outcome, Exception):
            self._guarded(_throw, outcome)
        else:
            self._guarded(then, outcome)

    def _rest(self) -> None:
        """Nothing to ask: until there is something new to follow, or the first of those that wait may try again."""
        if not self._followed:
            self._disconnect()
            return
        now = self._clock.monotonic_ms()
        waits = [row.follower.retry_ms - now for row in self._pausing]
        if self._held_back:
            waits.append(self._settings.backoff_ms)
        if waits:
            self._schedule(self._loop.call_later(max(0, min(waits)) / 1000 + 0.001, self._begin))

    def _unreachable(self, error: OSError) -> None:
        """The leader does not answer: a new connection and session after a pause."""
        if self._reachable and self._followed:
            logger.warning("Broker %d can't be fetched from: %s", self._leader_id, error)
        self._reachable = False
        self._disconnect()
        self._requests.reset()
        self._schedule(self._loop.call_later(self._settings.backoff_ms / 1000, self._begin))

    def _disconnect(self) -> None:
        self._busy = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- fetching -----------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        requests = self._requests
        if self._due:  # those that were asked about in this round
            self._prepare()
        if requests.wants_any or requests.in_session:
            then = self._fetched if requests.wants_any else self._session_ended
            request = requests.build()
            if self._writing:
                request.max_wait_ms = min(request.max_wait_ms, WAIT_BESIDE_WRITES_MS)
            self._ask(request, requests.version, then)
        elif self._truncating or self._locating:
            self._begin_soon()
        else:
            self._rest()

    def _session_ended(self, response: FetchResponse) -> None:
        """The leader ends a session without partitions."""
        self._requests.reset()
        self._round(None)

    def _fetched(self, response: FetchResponse) -> None:
        requests = self._requests
        requests.answered(response)
        if not self._reachable:
            logger.info("Broker %d can be fetched from again", self._leader_id)
            self._reachable = True
        if response.error_code:
            self._refused(Errors(response.error_code))
            self._round(None)
            return
        by_id = requests.version >= BY_ID_FROM
        self._take(
            (topic.topic_id if by_id else topic.topic, data)
            for topic in response.responses
            for data in topic.partitions
        )

    def _refused(self, error: Errors) -> None:
        if error in SESSION_ERRORS:
            logger.info("Broker %d ended the fetch session: %s", self._leader_id, error.name)
            return
        now = self._clock.monotonic_ms()
        for row in self._followed.values():
            if row.follower.state is State.FETCHING:
                row.follower.failed(error, now)
                self._due[row] = None

    def _take(self, answers: Iterator[tuple[str | bytes, PartitionData]]) -> None:
        """Deal with the answers by topic; what does not fit into a step follows after other work of the loop."""
        pace = Pace()
        for topic, data in answers:
            row = self._by_key.get((topic, data.partition_index))
            if row is not None:
                self._apply(row, data)
            if pace.due():
                self._busy = True  # clients come first
                self._loop.call_soon(self._answered, self._connection, self._take, answers)
                return
        self._round(None)

    def _apply(self, row: Followed, data: PartitionData) -> None:
        partition, follower = row.partition, row.follower
        mark, before = partition.log.high_watermark, follower.error
        quota = self._quota
        if quota is not None and data.records and quota.covers(partition.topic, partition.index):
            quota.record(len(data.records))
        written = follower.on_fetch(data, row.asked, self._clock.monotonic_ms())
        self._due[row] = None
        if not isinstance(written, int):
            asyncio.ensure_future(written).add_done_callback(partial(self._written, row, data))
            return
        follower.in_sync = data.high_watermark <= partition.log.log_end_offset
        if written or partition.log.high_watermark != mark:
            partition.followed(written)
        self._note(row, before)

    def _written(self, row: Followed, data: PartitionData, appending: asyncio.Future[AppendInfo]) -> None:
        """An append that had to wait for a slow disk is through."""
        failure = appending.exception()
        if not self._still([row]):
            return
        partition, follower = row.partition, row.follower
        before = follower.error
        if failure is not None and not isinstance(failure, KafkaError):
            logger.error("%s can't be written: %s: %s", partition, type(failure).__name__, failure)
            failure = KafkaError(Errors.UNKNOWN_SERVER_ERROR)
        now = self._clock.monotonic_ms()
        written = follower.on_written(data, appending.result() if failure is None else failure, now)
        follower.in_sync = data.high_watermark <= partition.log.log_end_offset
        partition.followed(written)
        self._note(row, before)
        self._writing.pop(row, None)
        self._due[row] = None
        self._begin_soon()

    def _note(self, row: Followed, before: Errors) -> None:
        """A line in the log when a partition begins to fail, but not for a leader that is a moment behind."""
        error = row.follower.error
        if error != before and error:
            level = logging.DEBUG if error in BEHIND else logging.WARNING
            logger.log(level, "%s can't be fetched from broker %d: %s", row.partition, self._leader_id, error.name)

    # -- what else is asked -------------------------------------------------------------------------------------

    def _take_all(self, waiting: _Rows) -> list[Followed]:
        """Those that wait for an answer; they are due after it."""
        rows = list(waiting)
        waiting.clear()
        self._due.update(dict.fromkeys(rows))
        return rows

    def _still(self, rows: list[Followed]) -> list[Followed]:
        """Those that no other order of the controller's has come for, while an answer was on its way."""
        return [row for row in rows if self._followed.get(row.partition.topic_partition) is row]

    def _truncate(self) -> None:
        """OffsetForLeaderEpoch, for leaders whose Fetch does not compare epochs."""
        if not self._truncating:
            self._locate()
            return
        rows = self._take_all(self._truncating)
        request = epochs_request(self._settings.broker_id, rows)
        self._ask(request, self._settings.epochs_version, partial(self._truncated, rows))

    def _truncated(self, rows: list[Followed], response: OffsetForLeaderEpochResponse) -> None:
        now = self._clock.monotonic_ms()
        found = {(topic.topic, each.partition): each for topic in response.topics for each in topic.partitions}
        for row in self._still(rows):
            answer = found.get((row.partition.topic, row.partition.index))
            before = row.follower.error
            if answer is None:
                row.follower.failed(Errors.UNKNOWN_SERVER_ERROR, now)
            else:
                row.follower.on_epoch_end(answer.error_code, answer.leader_epoch, answer.end_offset, now)
            self._note(row, before)
        self._locate()

    def _locate(self) -> None:
        """ListOffsets, where the leader has no such offset: where its log ends and begins."""
        if self._locating:
            rows = self._take_all(self._locating)
            request = offsets_request(self._settings.broker_id, rows, LATEST)
            self._ask(request, self._settings.offsets_version, partial(self._ends_located, rows))
        else:
            self._fetch()

    def _ends_located(self, rows: list[Followed], ends: ListOffsetsResponse) -> None:
        then = partial(self._located, rows, offsets_of(ends))
        self._ask(offsets_request(self._settings.broker_id, rows, EARLIEST), self._settings.offsets_version, then)

    def _located(
        self, rows: list[Followed], ends: dict[tuple[str, int], tuple[int, int]], response: ListOffsetsResponse
    ) -> None:
        starts = offsets_of(response)
        now = self._clock.monotonic_ms()
        for row in self._still(rows):
            at = row.partition.topic, row.partition.index
            (end_error, end), (start_error, start) = (each.get(at, (-1, -1)) for each in (ends, starts))
            before = row.follower.error
            if end_error or start_error:
                row.follower.failed(Errors(end_error or start_error), now)
            else:
                logger.info(
                    "%s ends at %d here, but begins at %d and ends at %d at broker %d",
                    row.partition, row.partition.log.log_end_offset, start, end, self._leader_id,
                )  # fmt: skip
                row.follower.on_located(start, end, now)
            self._note(row, before)
        self._fetch()


def _throw(error: Exception) -> None:
    raise error
