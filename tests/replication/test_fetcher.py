"""Fetchers against leaders that are objects: real partitions and sessions, with connections that fail when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pybroker.broker.fetch_sessions import FetchSessionCache
from pybroker.protocol.clock import SystemClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from pybroker.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pybroker.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from pybroker.protocol.uuids import ZERO_UUID
from pybroker.replication.fetch import FetchParameters, PartitionReader
from pybroker.replication.fetch_requests import FetchSettings
from pybroker.replication.fetchers import ReplicaFetchers
from pybroker.replication.follower import Follower, State
from pybroker.replication.partition import Partition
from tests.replication.cluster_model import ModelLog, SlowLog

LEADER, SELF = 2, 1
ID = b"\7" * 16


def state(index: int, epoch: int = 0) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        partition_index=index, leader=LEADER, leader_epoch=epoch, replicas=[LEADER, SELF], isr=[LEADER]
    )


class Leader:
    """A connection to it is the leader itself."""

    def __init__(self, count: int) -> None:
        self.logs = [ModelLog() for _ in range(count)]
        self.partitions = [Partition("t", index, ID, log, LEADER) for index, log in enumerate(self.logs)]  # type: ignore[arg-type]
        for index, partition in enumerate(self.partitions):
            partition.make_leader(state(index), 0)
        self.sessions = FetchSessionCache(10, lambda: 0)
        self.reader = PartitionReader(self.find, lambda: 0)
        self.asked: list[Any] = []
        self.connections: list[str] = []
        self.broken = 0

    def find(self, topic: str, index: int) -> Partition:
        if topic != "t" or index >= len(self.partitions):
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        return self.partitions[index]

    def connect(self, leader_id: int, client_id: str) -> Any:
        assert leader_id == LEADER
        self.connections.append(client_id)
        return self

    def close(self) -> None:
        """Sessions outlive connections."""

    def ask(self, request: Any, version: int, on_answer: Callable[[Any], None]) -> None:
        async def answered() -> None:
            try:
                outcome = await self.send(request, version)
            except OSError as error:
                outcome = error
            on_answer(outcome)

        self.asking = asyncio.create_task(answered())

    async def send(self, request: Any, version: int) -> Any:
        await asyncio.sleep(0.001)
        self.asked.append(request)
        if self.broken:
            self.broken -= 1
            raise ConnectionResetError("gone")
        match request:
            case FetchRequest():
                return self.fetch(request, version)
            case ListOffsetsRequest():
                offsets = {-1: lambda log: log.log_end_offset, -2: lambda log: log.log_start_offset}
                return ListOffsetsResponse(topics=[
                    ListOffsetsTopicResponse(name="t", partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            offset=offsets[each.timestamp](self.logs[each.partition_index]),
                        )
                        for each in topic.partitions
                    ])
                    for topic in request.topics
                ])  # fmt: skip
            case OffsetForLeaderEpochRequest():
                return OffsetForLeaderEpochResponse(topics=[
                    OffsetForLeaderTopicResult(topic="t", partitions=[
                        EpochEndOffset(partition=each.partition, leader_epoch=found[0], end_offset=found[1])
                        for each in topic.partitions
                        for found in [self.logs[each.partition].end_offset_for_epoch(each.leader_epoch)]
                    ])
                    for topic in request.topics
                ])  # fmt: skip

    def fetch(self, request: FetchRequest, version: int) -> FetchResponse:
        try:
            fetching = self.sessions.open(request, version, {ID: "t"}.get)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        how = FetchParameters(SELF, 0, 1, 1 << 20, 0, False, version >= 12)
        found = self.reader.read(fetching.to_read(), how, fetching)
        response = FetchResponse(session_id=fetching.session_id)
        for ask, data in fetching.answer(found.answers):
            response.responses.append(FetchableTopicResponse(topic="t", topic_id=ask.topic_id, partitions=[data]))
        fetching.done()
        return response


class Bench:
    def __init__(self, count: int = 2, **settings: Any) -> None:
        self.leader = Leader(count)
        self.settings = FetchSettings(SELF, **{"backoff_ms": 50, **settings})
        self.fetchers = ReplicaFetchers(self.settings, self.leader.connect, SystemClock())
        self.logs = [ModelLog() for _ in range(count)]
        self.partitions = [Partition("t", index, ID, log, SELF) for index, log in enumerate(self.logs)]  # type: ignore[arg-type]

    def follow(self, epoch: int = 0) -> None:
        for index, partition in enumerate(self.partitions):
            partition.make_follower(state(index, epoch))
            self.fetchers.follow(partition)

    def append(self, index: int, count: int = 1) -> None:
        for _ in range(count):
            self.leader.partitions[index].append(1, 1, 9)  # type: ignore[arg-type]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.002)

    async def alike(self) -> None:
        await self.until(lambda: all(
            (mine.records, mine.high_watermark) == (its.records, its.high_watermark)
            for mine, its in zip(self.logs, self.leader.logs, strict=True)
        ))  # fmt: skip


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.fetchers.close()


async def test_it_brings_everything_and_the_watermark(bench: Bench) -> None:
    bench.append(0, 5)
    bench.follow()
    bench.append(1, 300)
    await bench.alike()
    bench.append(0, 3)
    await bench.alike()
    assert bench.leader.connections == ["broker-1-fetcher-0"]
    assert len(bench.leader.sessions) == 1


async def test_a_broken_connection_is_replaced_and_the_session_begun_anew(bench: Bench) -> None:
    bench.follow()
    await bench.until(lambda: len(bench.leader.asked) > 3)
    bench.leader.broken = 2
    bench.append(0, 2)
    await bench.alike()
    assert len(bench.leader.connections) == 3


async def test_a_lost_session_is_begun_anew(bench: Bench) -> None:
    bench.follow()
    await bench.until(lambda: len(bench.leader.asked) > 3)
    bench.leader.sessions = FetchSessionCache(10, lambda: 0)
    bench.append(1, 2)
    await bench.alike()
    assert len(bench.leader.connections) == 1


async def test_what_is_not_followed_any_more_is_not_fetched(bench: Bench) -> None:
    bench.follow()
    bench.append(0)
    await bench.alike()
    bench.fetchers.stop(bench.partitions[0])
    bench.append(0)
    bench.append(1)
    await bench.until(lambda: bench.logs[1].log_end_offset == 1)
    assert bench.logs[0].log_end_offset == 1
    bench.fetchers.stop(bench.partitions[1])
    await bench.until(lambda: len(bench.leader.sessions) == 0)  # the leader need not keep it
    count = len(bench.leader.asked)
    await asyncio.sleep(0.02)
    assert len(bench.leader.asked) == count


async def test_a_leader_that_has_not_heard_of_it_is_asked_again(bench: Bench) -> None:
    bench.follow(epoch=3)
    await bench.until(lambda: len(bench.leader.asked) >= 2)
    for index, partition in enumerate(bench.leader.partitions):
        partition.make_leader(state(index, 3), 0)
    bench.append(0)
    await bench.alike()


async def test_where_the_log_begins_above_ours_it_is_begun_anew(bench: Bench) -> None:
    bench.append(0, 4)
    log = bench.leader.logs[0]
    log.update_high_watermark(4)
    log.maybe_increment_log_start_offset(3)
    bench.follow()
    await bench.until(lambda: bench.logs[0].log_end_offset == 4)
    assert bench.logs[0].log_start_offset == 3


@pytest.mark.parametrize("version", [11, 12, 17])
async def test_it_cuts_off_what_the_leader_has_not(version: int) -> None:
    bench = Bench(1, version=version)
    bench.append(0, 2)
    bench.logs[0].start_leader_epoch(0)
    for value in (1, 1, 8, 9):
        bench.logs[0].append_as_leader(value, 0)
    bench.leader.partitions[0].make_leader(state(0, 1), 0)
    bench.append(0, 3)
    bench.follow(epoch=1)
    await bench.alike()
    assert [epoch for epoch, _ in bench.logs[0].records] == [0, 0, 1, 1, 1]
    asked = any(isinstance(each, OffsetForLeaderEpochRequest) for each in bench.leader.asked)
    assert asked == (version < 12)
    bench.fetchers.close()


async def test_partitions_are_spread_over_fetchers() -> None:
    bench = Bench(8, fetchers=3)
    bench.follow()
    for index in range(8):
        bench.append(index)
    await bench.alike()
    assert sorted(bench.leader.connections) == [f"broker-1-fetcher-{number}" for number in range(3)]
    bench.fetchers.close()


async def test_topics_without_id_are_fetched_by_name(bench: Bench) -> None:
    for partition in bench.partitions:
        partition.topic_id = ZERO_UUID
    bench.append(0)
    bench.follow()
    await bench.alike()


async def test_a_slow_disk_holds_up_its_own_partitions_only() -> None:
    bench = Bench(3)
    slow, failing, quick = bench.logs = [SlowLog(), SlowLog(), ModelLog()]
    bench.partitions = [Partition("t", index, ID, log, SELF) for index, log in enumerate(bench.logs)]  # type: ignore[arg-type]
    bench.follow()
    bench.append(0, 2)
    bench.append(1)
    await bench.until(lambda: bool(slow.begun and failing.begun))
    for count in range(1, 5):
        bench.append(2)
        await bench.until(lambda count=count: quick.log_end_offset == count)
    asked = [each for each in bench.leader.asked if isinstance(each, FetchRequest)]
    assert asked[-1].max_wait_ms < asked[0].max_wait_ms  # what is written now is to be fetched on soon
    bench.append(0)
    slow.finish()
    failing.finish(KafkaError(Errors.CORRUPT_MESSAGE))
    await bench.until(lambda: bool(slow.begun and failing.begun))
    slow.finish()
    failing.finish()
    await bench.alike()
    bench.append(0)
    await bench.until(lambda: bool(slow.begun))
    bench.fetchers.stop(bench.partitions[0])
    slow.finish()  # nobody waits for it any more
    assert slow.log_end_offset == 4
    await asyncio.sleep(0.01)
    assert slow.high_watermark == 3
    bench.fetchers.close()


class Hand:
    """A connection whose requests are answered by the test."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []

    def ask(self, request: Any, version: int, on_answer: Callable[[Any], None]) -> None:
        self.asked.append((request, on_answer))

    def close(self) -> None:
        """Nothing is out."""


async def test_the_next_fetch_leaves_in_the_call_that_answers_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, hand = Bench(100), Hand()
    bench.fetchers = ReplicaFetchers(bench.settings, lambda *_: hand, SystemClock())  # type: ignore[arg-type]
    bench.follow()
    await bench.until(lambda: bool(hand.asked))
    prepared: list[Follower] = []
    prepare = Follower.prepare

    def noted(self: Follower, now_ms: int) -> State:
        prepared.append(self)
        return prepare(self, now_ms)

    monkeypatch.setattr(Follower, "prepare", noted)

    def answer() -> list[int]:
        """The partitions that the next request names."""
        request, on_answer = hand.asked[-1]
        count = len(hand.asked)
        on_answer(bench.leader.fetch(request, 17))
        assert len(hand.asked) == count + 1
        return [each.partition for topic in hand.asked[-1][0].topics for each in topic.partitions]

    assert len(hand.asked) == 1
    assert answer() == []
    bench.append(7)
    prepared.clear()
    assert answer() == [7]
    assert [follower.log for follower in prepared] == [bench.logs[7]]  # the other 99 cost nothing
    bench.fetchers.close()
