"""The runtime: loading in steps, writes that wait for the high watermark, giving a partition up, cost of heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pybroker.coordinator import records
from pybroker.coordinator.effects import Reply
from pybroker.coordinator.offsets import CommittedOffset
from pybroker.coordinator.records import Record, offset_key
from pybroker.coordinator.service import GroupCoordinator
from pybroker.coordinator.settings import GroupSettings
from pybroker.coordinator.shard import Committer
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pybroker.protocol.messages.offset_commit import OffsetCommitValue
from pybroker.protocol.messages.sync_group import SyncGroupRequest
from pybroker.protocol.records.header import iter_headers
from pybroker.protocol.records.record import BatchBuilder, EndTxnMarker, end_txn_batch
from pybroker.protocol.timer import Timer

PLACE = ("t", 0)


class Logs:
    """Logs in memory. `mark` holds the high watermark back; `slow` appends wait until they are let go."""

    def __init__(self, count: int) -> None:
        self.data = [bytearray() for _ in range(count)]
        self.ends = [0] * count
        self.mark: int | None = None
        self.error: Errors | None = None
        self.slow: asyncio.Event | None = None
        self.watchers: list[Callable[[], None]] = []
        self.reads = 0

    def add(self, index: int, batch: bytearray) -> int:
        for at, header in iter_headers(batch):
            batch[at : at + 8] = (self.ends[index] + header.base_offset).to_bytes(8, "big")
            last = header.last_offset
        self.data[index] += batch
        self.ends[index] += last + 1
        return self.ends[index]

    def append(self, index: int, batch: bytearray, *, transactional: bool) -> int | Awaitable[int]:
        if self.error is not None:
            raise KafkaError(self.error)
        end = self.add(index, batch)
        return end if self.slow is None else self._later(end, self.slow)

    async def _later(self, end: int, slow: asyncio.Event) -> int:
        await slow.wait()
        return end

    def high_watermark(self, index: int) -> int:
        return self.ends[index] if self.mark is None else self.mark

    def bounds(self, index: int) -> tuple[int, int]:
        return 0, self.ends[index]

    async def read(self, index: int, offset: int, max_bytes: int) -> bytes:
        self.reads += 1
        await asyncio.sleep(0)
        for at, header in iter_headers(self.data[index]):
            if header.last_offset >= offset:
                return bytes(self.data[index][at : at + max(max_bytes, header.size)])
        return b""

    def watch(self, index: int, moved: Callable[[], None]) -> Callable[[], None]:
        if self.error is not None:
            raise KafkaError(self.error)
        self.watchers.append(moved)
        return lambda: self.watchers.remove(moved)

    def advance(self, mark: int | None) -> None:
        self.mark = mark
        for moved in tuple(self.watchers):
            moved()


class Broker:
    """A coordinator over Logs of one partition; time moves by hand."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.clock = ManualClock()
        self.timer = Timer(self.clock)
        settings = GroupSettings(initial_rebalance_delay_ms=0)
        self.groups = GroupCoordinator(logs, lambda: len(logs.data), settings, self.clock, self.timer, load_bytes=1000)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.timer.run_due()

    def commit(self, offset: int, group_id: str = "g") -> tuple[Reply, Any]:
        reply = Reply(9)
        wanted = [(PLACE, CommittedOffset(offset, -1, "", self.clock.now_ms()))]
        self.groups.commit(Committer(group_id, "", None, -1), wanted, reply)
        return reply, reply.result()

    def offset(self, group_id: str = "g") -> int | None:
        found = self.groups.fetch_offsets(group_id, [PLACE], False)[0][1].offset
        return None if found is None else found.offset

    def member(self, group_id: str = "g", version: int = 3) -> str:
        """A group of one member, stable; its id."""
        reply = Reply(version)
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        request = JoinGroupRequest(
            group_id=group_id, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
            protocols=protocols,
        )  # fmt: skip
        self.groups.join(request, "c", "/127.0.0.1", reply)
        member_id: str = reply.result().member_id
        synced = Reply(3)
        self.groups.sync(SyncGroupRequest(group_id=group_id, generation_id=1, member_id=member_id), synced)
        assert synced.result().error_code == 0
        return member_id


@pytest.fixture
def broker() -> Broker:
    broker = Broker(Logs(1))
    broker.groups.runtime.elected(0, 0)
    return broker


async def test_a_commit_on_one_replica_is_answered_at_once(broker: Broker) -> None:
    assert broker.commit(5)[1] == [Errors.NONE]
    assert broker.offset() == 5


async def test_commits_wait_for_the_high_watermark_in_order(broker: Broker) -> None:
    broker.logs.mark = 0
    first, second = broker.commit(5)[1], broker.commit(6)[1]
    broker.logs.advance(1)
    assert await first == [Errors.NONE]
    assert broker.offset() == 5
    assert not second.done()
    broker.logs.advance(2)
    assert await second == [Errors.NONE]
    assert broker.offset() == 6
    assert not broker.logs.watchers


async def test_a_commit_that_is_not_replicated_in_time(broker: Broker) -> None:
    broker.logs.mark = 0
    waiting = broker.commit(5)[1]
    broker.advance(5010)
    assert await waiting == [Errors.COORDINATOR_NOT_AVAILABLE]
    later = broker.commit(6)[1]
    broker.logs.advance(2)
    assert await later == [Errors.NONE]
    assert broker.offset() == 6


async def test_appends_that_wait_for_the_disk_keep_their_order(broker: Broker) -> None:
    broker.logs.slow = asyncio.Event()
    first = broker.commit(5)[1]
    slow, broker.logs.slow = broker.logs.slow, None
    second = broker.commit(6)[1]
    await asyncio.sleep(0)
    assert not second.done()
    slow.set()
    assert await first == [Errors.NONE]
    assert await second == [Errors.NONE]
    assert broker.offset() == 6


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Errors.NOT_LEADER_OR_FOLLOWER, Errors.NOT_COORDINATOR),
        (Errors.NOT_ENOUGH_REPLICAS, Errors.COORDINATOR_NOT_AVAILABLE),
        (Errors.MESSAGE_TOO_LARGE, Errors.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
async def test_appends_that_are_refused(broker: Broker, error: Errors, told: Errors) -> None:
    broker.logs.error = error
    assert broker.commit(5)[1] == [told]
    assert broker.offset() is None


@pytest.mark.parametrize("told", [True, False])
async def test_the_disk_is_done_when_another_leads(
    broker: Broker, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Before or after the coordinator was told to give the partition up."""
    broker.logs.slow = asyncio.Event()
    answer = broker.commit(5)[1]
    broker.logs.error = Errors.NOT_LEADER_OR_FOLLOWER
    if told:
        broker.groups.runtime.resigned(0)
    broker.logs.slow.set()
    assert await asyncio.wait_for(answer, 10) == [Errors.NOT_COORDINATOR]
    for _ in range(5):
        await asyncio.sleep(0)
    broker.groups.runtime.resigned(0)
    assert not broker.logs.watchers
    assert len(broker.timer) == 1, "only the expiry of offsets is left"
    assert not caplog.records


async def test_a_partition_that_is_given_up(broker: Broker) -> None:
    member = broker.member()
    broker.logs.mark = 0
    waiting = broker.commit(5, "other")[1]
    broker.groups.runtime.resigned(0)
    assert await waiting == [Errors.NOT_COORDINATOR]
    assert broker.groups.heartbeat("g", member, None, 1) == Errors.NOT_COORDINATOR
    assert not len(broker.timer) - 1, "only the expiry of offsets is left"
    broker.advance(60_000)


async def test_loading(broker: Broker) -> None:
    logs = Logs(1)
    for number in range(500):
        builder = BatchBuilder()
        value = OffsetCommitValue(offset=number, metadata="", commit_timestamp=1)
        builder.append(1, *records.encode(Record(offset_key(f"g{number % 7}", "t", 0), value)))
        if number == 250:
            builder.append(1, b"\0\x63", b"what nobody knows")
            builder.append(1, b"\0\1broken", b"\0\3")
        logs.add(0, builder.build())
    builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    value = OffsetCommitValue(offset=1000, metadata="", commit_timestamp=1)
    builder.append(1, *records.encode(Record(offset_key("g0", "t", 0), value)))
    logs.add(0, builder.build())
    logs.add(0, end_txn_batch(EndTxnMarker(True, 0), producer_id=7, producer_epoch=0, timestamp=1))
    fresh = Broker(logs)
    fresh.groups.runtime.elected(0, 3)
    with pytest.raises(KafkaError) as refused:
        fresh.offset("g0")
    assert refused.value.code == Errors.COORDINATOR_LOAD_IN_PROGRESS
    assert fresh.groups.heartbeat("g0", "m", None, 1) == Errors.NONE
    assert fresh.groups.list_groups((), ())[0] == Errors.COORDINATOR_LOAD_IN_PROGRESS
    reply = Reply(5)
    fresh.groups.sync(SyncGroupRequest(group_id="g0"), reply)
    assert reply.result().error_code == Errors.REBALANCE_IN_PROGRESS
    while fresh.groups.runtime.is_loading:
        await asyncio.sleep(0)
    assert logs.reads > 10
    assert [fresh.offset(f"g{number}") for number in range(7)] == [1000, 498, 499, 493, 494, 495, 496]
    assert len(fresh.groups.list_groups(["empty"], ["CLASSIC"])[1]) == 7


async def test_giving_up_while_loading(broker: Broker) -> None:
    broker.commit(5)
    fresh = Broker(broker.logs)
    fresh.groups.runtime.elected(0, 1)
    fresh.groups.runtime.resigned(0)
    await asyncio.sleep(0.01)
    with pytest.raises(KafkaError) as refused:
        fresh.offset()
    assert refused.value.code == Errors.NOT_COORDINATOR
    fresh.groups.runtime.elected(0, 3)
    while fresh.groups.runtime.is_loading:
        await asyncio.sleep(0)
    assert fresh.offset() == 5


async def test_expiry_is_done_now_and_then(broker: Broker) -> None:
    broker.commit(5)
    week = 7 * 24 * 60 * 60 * 1000
    broker.advance(week)
    await asyncio.sleep(0.01)
    assert broker.groups.list_groups((), ()) == (Errors.NONE, [])


async def test_a_deleted_topic_takes_its_offsets_along(broker: Broker) -> None:
    broker.commit(5)
    broker.groups.topics_deleted({"u"})
    assert broker.offset() == 5
    broker.groups.topics_deleted({"t", "u"})
    assert broker.offset() is None


async def test_a_heartbeat_touches_at_most_one_timer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many members there are: it only moves a deadline, and the timer is set again when it finds that."""
    members = [broker.member(f"g{number}") for number in range(200)]
    touched = 0
    schedule = Timer.schedule

    def counted(self: Timer, delay_ms: float, callback: Callable[[], object]) -> Any:
        nonlocal touched
        touched += 1
        return schedule(self, delay_ms, callback)

    monkeypatch.setattr(Timer, "schedule", counted)
    beats = 0
    for _ in range(20):
        for number, member in enumerate(members):
            before = touched
            assert broker.groups.heartbeat(f"g{number}", member, None, 1) == Errors.NONE
            assert touched - before <= 1
            beats += 1
        broker.advance(3000)
    assert touched <= beats / 2
    broker.advance(10_010)
    assert broker.groups.heartbeat("g0", members[0], None, 1) == Errors.UNKNOWN_MEMBER_ID
