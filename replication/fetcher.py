"""Brings the partitions that this broker follows from their leaders.

One task, one connection and one fetch session for each leader and fetcher number (num.replica.fetchers); partitions are
spread over the numbers by their names. Kafka's ReplicaFetcherManager and ReplicaFetcherThread. What is done with a
partition's answer is follower.Follower's to say; this is the talking.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pybroker.protocol.clock import Clock
from pybroker.protocol.connection import BrokerConnection
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import FetchResponse, PartitionData
from pybroker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from pybroker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pybroker.protocol.pace import Pace
from pybroker.protocol.types import TopicPartition
from pybroker.replication.fetch_requests import SESSION_ERRORS, FetchRequests, FetchSettings, Key, Wanted
from pybroker.replication.follower import Follower, State
from pybroker.replication.partition import Partition
from pybroker.replication.quotas import ReplicationQuota
from pybroker.storage.log_append import AppendInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")
LATEST, EARLIEST = -1, -2
DIVERGENCE_BY_FETCH = 12
LIST_OFFSETS_VERSION = 5  # enough for all that is asked; every broker since 2.1 has it
EPOCHS_VERSION = 3
WAIT_BESIDE_WRITES_MS = 20  # a Fetch waits no longer while others are being written, which are to be in the next

#: Errors of a leader that has not heard yet what the controller told this broker.
BEHIND = frozenset({
    Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.UNKNOWN_TOPIC_ID, Errors.UNKNOWN_LEADER_EPOCH,
    Errors.NOT_LEADER_OR_FOLLOWER, Errors.FENCED_LEADER_EPOCH,
})  # fmt: skip
#: A connection to a broker for a client id, None while nobody knows where that broker is.
Connect = Callable[[int, str], BrokerConnection | None]
#: A partition's follower, and where its request stood: its fetch offset.
Asked = dict[Key, tuple[Partition, Follower, int]]


class LeaderFetcher:
    """Everything that one fetcher number follows at one leader."""

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
        self._held_back = False  # the throttle leaves out something that could be fetched
        self._connection: BrokerConnection | None = None
        self._requests = FetchRequests(settings, broker_epoch())
        self._followed: dict[TopicPartition, tuple[Partition, Follower]] = {}
        self._changed = asyncio.Event()
        self._reachable = True
        self.task = asyncio.create_task(self._run(), name=f"fetcher {number} from broker {leader_id}")

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def partitions(self) -> list[Partition]:
        return [partition for partition, _ in self._followed.values()]

    def add(self, partition: Partition) -> None:
        follower = Follower(
            partition.log,
            partition.leader_epoch,
            tells_epochs=self._settings.version >= DIVERGENCE_BY_FETCH,
            backoff_ms=self._settings.backoff_ms,
        )
        self._followed[partition.topic_partition] = partition, follower
        self._changed.set()

    def remove(self, at: TopicPartition) -> None:
        if self._followed.pop(at, None) is not None:
            self._changed.set()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self._disconnect()

    # -- one round after the other ------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            ready = self._ready()
            if not any(ready.values()) and not self._requests.in_session:
                if not self._followed:
                    self._disconnect()
                await self._rest()
                continue
            try:
                await self._truncate(ready[State.TRUNCATING])
                await self._locate(ready[State.LOCATING])
                await self._fetch(ready[State.FETCHING])
            except OSError as error:
                await self._unreachable(error)
            except Exception:
                # One answer that can't be dealt with must not end replication; nor may it be asked for without rest.
                logger.exception("Fetching from broker %d failed", self._leader_id)
                await self._unreachable(ConnectionError("see above"))

    def _ready(self) -> dict[State, Asked]:
        now = self._clock.monotonic_ms()
        ready: dict[State, Asked] = {State.TRUNCATING: {}, State.LOCATING: {}, State.FETCHING: {}}
        self._held_back = False
        for partition, follower in self._followed.values():
            asked = ready.get(follower.prepare(now))
            if asked is ready[State.FETCHING] and self._holds_back(partition, follower):
                self._held_back = True
            elif asked is not None:
                key = partition.topic, partition.topic_id, partition.index
                asked[key] = partition, follower, partition.log.log_end_offset
        return ready

    def _holds_back(self, partition: Partition, follower: Follower) -> bool:
        """Whether the throttle lets nothing be fetched of it now; what is in sync is never held back."""
        quota = self._quota
        return quota is not None and not follower.in_sync and quota.holds_back(partition.topic, partition.index)

    async def _rest(self) -> None:
        """Until there is something new to follow, or the first of those that wait may try again."""
        waits = [follower.retry_ms for _, follower in self._followed.values() if follower.state is State.BACKING_OFF]
        if self._held_back:
            waits.append(self._clock.monotonic_ms() + self._settings.backoff_ms)
        pause = max(0, min(waits) - self._clock.monotonic_ms()) / 1000 + 0.001 if waits else None
        await self._pause(pause)

    async def _pause(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            pass

    async def _unreachable(self, error: OSError) -> None:
        """The leader does not answer: a new connection and session after a pause."""
        if self._reachable and self._followed:
            logger.warning("Broker %d can't be fetched from: %s", self._leader_id, error)
        self._reachable = False
        self._disconnect()
        self._requests.reset()
        self._changed.clear()
        await self._pause(self._settings.backoff_ms / 1000)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _leader(self) -> BrokerConnection:
        if self._connection is None:
            self._connection = self._connect(self._leader_id, self._client_id)
            self._requests = FetchRequests(self._settings, self._broker_epoch())
        if self._connection is None:
            raise ConnectionError("nobody has told where it is")
        return self._connection

    def _still_followed(self, partition: Partition, follower: Follower) -> bool:
        """Not when another order of the controller's came while an answer was on its way."""
        current = self._followed.get(partition.topic_partition)
        return current is not None and current[1] is follower

    # -- fetching -----------------------------------------------------------------------------------------------

    async def _fetch(self, asked: Asked) -> None:
        if not asked and not self._requests.in_session:
            return
        leader = self._leader()
        wanted: dict[Key, Wanted] = {
            key: (follower.leader_epoch, offset, follower.last_fetched_epoch, partition.log.log_start_offset)
            for key, (partition, follower, offset) in asked.items()
        }
        request = self._requests.build(wanted)
        if any(follower.state is State.WRITING for _, follower in self._followed.values()):
            request.max_wait_ms = min(request.max_wait_ms, WAIT_BESIDE_WRITES_MS)
        version = self._requests.version
        response: FetchResponse = await leader.send(request, version)
        self._requests.answered(response)
        if not asked:
            self._requests.reset()  # the leader ends a session without partitions
        if not self._reachable:
            logger.info("Broker %d can be fetched from again", self._leader_id)
            self._reachable = True
        if response.error_code:
            self._refused(Errors(response.error_code), asked)
            return
        await self._take(response, asked, version)

    def _refused(self, error: Errors, asked: Asked) -> None:
        if error in SESSION_ERRORS:
            logger.info("Broker %d ended the fetch session: %s", self._leader_id, error.name)
        if error not in SESSION_ERRORS or not asked:
            now = self._clock.monotonic_ms()
            for _, follower, _ in asked.values():
                follower.failed(error, now)

    async def _take(self, response: FetchResponse, asked: Asked, version: int) -> None:
        names = {(topic_id, index): topic for topic, topic_id, index in asked}
        by_name = {(topic, index): topic_id for topic, topic_id, index in asked}
        pace = Pace()
        for topic in response.responses:
            for data in topic.partitions:
                index = data.partition_index
                name, topic_id = topic.topic, topic.topic_id
                if version >= 13:
                    name = names.get((topic_id, index), "")
                else:
                    topic_id = by_name.get((name, index), topic_id)
                found = asked.get((name, topic_id, index))
                if found is not None and self._still_followed(found[0], found[1]):
                    self._apply(*found, data)
                if pace.due():
                    await pace.rest()  # clients come first

    def _apply(self, partition: Partition, follower: Follower, offset: int, data: PartitionData) -> None:
        mark = partition.log.high_watermark
        before = follower.error
        quota = self._quota
        if quota is not None and data.records and quota.covers(partition.topic, partition.index):
            quota.record(len(data.records))
        written = follower.on_fetch(data, offset, self._clock.monotonic_ms())
        if not isinstance(written, int):
            done = partial(self._written, partition, follower, data)
            asyncio.ensure_future(written).add_done_callback(done)
            return
        follower.in_sync = data.high_watermark <= partition.log.log_end_offset
        if written or partition.log.high_watermark != mark:
            partition.followed(written)
        self._note(partition, follower, before)

    def _written(
        self, partition: Partition, follower: Follower, data: PartitionData, appending: asyncio.Future[AppendInfo]
    ) -> None:
        """An append that had to wait for a slow disk is through."""
        failure = appending.exception()
        if not self._still_followed(partition, follower):
            return
        before = follower.error
        if failure is not None and not isinstance(failure, KafkaError):
            logger.error("%s can't be written: %s: %s", partition, type(failure).__name__, failure)
            failure = KafkaError(Errors.UNKNOWN_SERVER_ERROR)
        now = self._clock.monotonic_ms()
        written = follower.on_written(data, appending.result() if failure is None else failure, now)
        follower.in_sync = data.high_watermark <= partition.log.log_end_offset
        partition.followed(written)
        self._note(partition, follower, before)
        self._changed.set()

    def _note(self, partition: Partition, follower: Follower, before: Errors) -> None:
        """A line in the log when a partition begins to fail, but not for a leader that is a moment behind."""
        if follower.error != before and follower.error:
            level = logging.DEBUG if follower.error in BEHIND else logging.WARNING
            logger.log(
                level, "%s can't be fetched from broker %d: %s", partition, self._leader_id, follower.error.name
            )

    # -- what else is asked -------------------------------------------------------------------------------------

    async def _truncate(self, asked: Asked) -> None:
        """OffsetForLeaderEpoch, for leaders whose Fetch does not compare epochs."""
        if not asked:
            return
        request = OffsetForLeaderEpochRequest(
            replica_id=self._settings.broker_id,
            topics=[
                OffsetForLeaderTopic(topic=topic, partitions=[
                    OffsetForLeaderPartition(
                        partition=index,
                        current_leader_epoch=follower.leader_epoch,
                        leader_epoch=follower.last_fetched_epoch,
                    )
                ])
                for (topic, _, index), (_, follower, _) in asked.items()
            ],
        )  # fmt: skip
        response: OffsetForLeaderEpochResponse = await self._leader().send(request, EPOCHS_VERSION)
        now = self._clock.monotonic_ms()
        found = {(topic.topic, each.partition): each for topic in response.topics for each in topic.partitions}
        for (topic, _, index), (partition, follower, _) in asked.items():
            answer = found.get((topic, index))
            if not self._still_followed(partition, follower):
                continue
            before = follower.error
            if answer is None:
                follower.failed(Errors.UNKNOWN_SERVER_ERROR, now)
            else:
                follower.on_epoch_end(answer.error_code, answer.leader_epoch, answer.end_offset, now)
            self._note(partition, follower, before)

    async def _locate(self, asked: Asked) -> None:
        """ListOffsets, where the leader has no such offset: where its log ends and begins."""
        if not asked:
            return
        ends = await self._offsets(asked, LATEST)
        starts = await self._offsets(asked, EARLIEST)
        now = self._clock.monotonic_ms()
        for key, (partition, follower, offset) in asked.items():
            if not self._still_followed(partition, follower):
                continue
            (end_error, end), (start_error, start) = (each.get(key, (-1, -1)) for each in (ends, starts))
            before = follower.error
            if end_error or start_error:
                follower.failed(Errors(end_error or start_error), now)
            else:
                logger.info(
                    "%s ends at %d here, but begins at %d and ends at %d at broker %d",
                    partition, offset, start, end, self._leader_id,
                )  # fmt: skip
                follower.on_located(start, end, now)
            self._note(partition, follower, before)

    async def _offsets(self, asked: Asked, timestamp: int) -> dict[Key, tuple[int, int]]:
        """(error code, offset) by partition."""
        request = ListOffsetsRequest(
            replica_id=self._settings.broker_id,
            topics=[
                ListOffsetsTopic(name=topic, partitions=[
                    ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=follower.leader_epoch, timestamp=timestamp
                    )
                ])
                for (topic, _, index), (_, follower, _) in asked.items()
            ],
        )  # fmt: skip
        response: ListOffsetsResponse = await self._leader().send(request, LIST_OFFSETS_VERSION)
        found = {
            (topic.name, each.partition_index): (each.error_code, each.offset)
            for topic in response.topics
            for each in topic.partitions
        }
        return {key: found[key[0], key[2]] for key in asked if (key[0], key[2]) in found}


class ReplicaFetchers:
    """The fetchers of a broker, made when there is something to follow and closed when there is not."""

    def __init__(
        self, settings: FetchSettings, connect: Connect, clock: Clock, broker_epoch: Callable[[], int] = lambda: -1,
        quota: ReplicationQuota | None = None,
    ) -> None:  # fmt: skip
        """`quota` is the followers' throttle."""
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._quota = quota
        self._ending: set[asyncio.Task[None]] = set()
        self._fetchers: dict[tuple[int, int], LeaderFetcher] = {}
        self._where: dict[TopicPartition, LeaderFetcher] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch it from its leader, in its leader epoch."""
        self.stop(partition)
        at = partition.topic_partition
        number = zlib.crc32(at.topic.encode()) + at.partition
        key = partition.leader_id, number % self._settings.fetchers
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = LeaderFetcher(
                *key, self._settings, self._connect, self._clock, self._broker_epoch, self._quota
            )
            self._fetchers[key] = fetcher
        fetcher.add(partition)
        self._where[at] = fetcher

    def stop(self, partition: Partition) -> None:
        """Fetch it no more; harmless where it was not fetched."""
        fetcher = self._where.pop(partition.topic_partition, None)
        if fetcher is not None:
            fetcher.remove(partition.topic_partition)

    def resize(self, fetchers: int) -> None:
        """So many fetchers a leader from now on: partitions go over to those that they belong to then."""
        if fetchers == self._settings.fetchers:
            return
        logger.info("Each leader is fetched from by %d fetchers now, not %d", fetchers, self._settings.fetchers)
        self._settings = replace(self._settings, fetchers=fetchers)
        for partition in [each for fetcher in self._fetchers.values() for each in fetcher.partitions]:
            self.follow(partition)
        for key in [key for key in self._fetchers if key[1] >= fetchers]:
            ending = asyncio.ensure_future(self._fetchers.pop(key).close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends all tasks and connections."""
        fetchers = list(self._fetchers.values())
        self._fetchers.clear()
        self._where.clear()
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers), *self._ending)
