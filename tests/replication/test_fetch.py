"""Reading asks within a Fetch's limits, and waiting for enough to answer with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pybroker.protocol.clock import SystemClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import FetchPartition
from pybroker.protocol.timer import Timer
from pybroker.protocol.uuids import ZERO_UUID
from pybroker.replication.fetch import Ask, FetchParameters, PartitionReader, Round, WaitingFetch
from pybroker.replication.partition import Partition
from tests.replication.test_partition import append, partition, state

MANY = 1 << 20
DEADLINE = 5.0


def parameters(
    *, max_wait_ms: int = 500, min_bytes: int = 1, max_bytes: int = MANY, replica_id: int = -1, isolation: int = 0,
    hard_limit: bool = False, with_epochs: bool = True,
) -> FetchParameters:  # fmt: skip
    return FetchParameters(replica_id, max_wait_ms, min_bytes, max_bytes, isolation, hard_limit, with_epochs)


def ask(index: int, offset: int = 0, **wanted: Any) -> Ask:
    values: dict[str, Any] = {"partition_max_bytes": MANY, **wanted}
    return Ask("t", ZERO_UUID, FetchPartition(partition=index, fetch_offset=offset, **values))


class Bench:
    """Partitions 0..n-1 of one topic, each led here, and a reader over them. Remembers which asks became ready."""

    def __init__(self, directory: Path, count: int = 2) -> None:
        self.partitions = []
        for index in range(count):
            made = partition(directory / str(index))
            made.make_leader(state(), 0)
            self.partitions.append(made)
        self.reader = PartitionReader(self.find, lambda: 0)
        self.ready: list[Ask] = []
        self.waiting: WaitingFetch | None = None

    def find(self, topic: str, index: int) -> Partition:
        if topic != "t" or index >= len(self.partitions):
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        return self.partitions[index]

    def ask_ready(self, ask: Ask) -> None:
        self.ready.append(ask)
        if self.waiting is not None:
            self.waiting.progress(ask)

    def read(self, asks: list[Ask], how: FetchParameters | None = None) -> Round:
        return self.reader.read(asks, how or parameters(), self)

    async def wait(self, asks: list[Ask], how: FetchParameters) -> WaitingFetch:
        loop = asyncio.get_running_loop()
        first = self.read(asks, how)
        self.waiting = WaitingFetch(loop, Timer(SystemClock(), loop), first, how, lambda: self.read(asks, how))
        return self.waiting


def sizes(found: Round) -> list[int]:
    return [len(data.records or b"") for _, data in found.answers]


def test_limits_go_over_all_partitions_and_one_batch_comes_whole(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    size = append(bench.partitions[0], 10).bytes
    append(bench.partitions[1], 10)
    both = [ask(0), ask(1)]
    assert sizes(bench.read(both)) == [size, size]
    assert sizes(bench.read(both, parameters(max_bytes=1))) == [size, 0]
    assert sizes(bench.read(both, parameters(max_bytes=size + 10)))[0] == size
    assert sizes(bench.read([ask(0, partition_max_bytes=1)])) == [size]
    assert sizes(bench.read([ask(0, partition_max_bytes=1)], parameters(hard_limit=True))) == [1]


def test_consumers_read_to_the_watermark_and_followers_to_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    led = bench.partitions[0]
    led.make_leader(state(replicas=(1, 2), epoch=1), 0)
    size = append(led, 3).bytes
    assert sizes(bench.read([ask(0)])) == [0]
    assert sizes(bench.read([ask(0)], parameters(replica_id=2))) == [size]
    bench.read([ask(0, 3)], parameters(replica_id=2))  # the follower has them now
    assert sizes(bench.read([ask(0)])) == [size]


def test_errors_stand_at_their_partition_and_are_urgent(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    append(bench.partitions[0])
    found = bench.read([ask(0), ask(5), ask(1, 9), ask(1, partition_max_bytes=-1), ask(0, current_leader_epoch=7)])
    codes = [data.error_code for _, data in found.answers]
    assert codes == [
        Errors.NONE, Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.OFFSET_OUT_OF_RANGE, Errors.UNKNOWN_SERVER_ERROR,
        Errors.UNKNOWN_LEADER_EPOCH,
    ]  # fmt: skip
    assert found.urgent


def test_an_unknown_topic_id_is_told_as_such(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    unknown = Ask("", b"\5" * 16, FetchPartition(partition=0, partition_max_bytes=MANY))
    assert bench.read([unknown]).answers[0][1].error_code == Errors.UNKNOWN_TOPIC_ID


def test_a_diverging_epoch_is_answered_with_where_it_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    led = bench.partitions[0]
    append(led, 4)
    led.make_leader(state(epoch=3), 0)
    append(led, 2)
    data = bench.read([ask(0, 5, last_fetched_epoch=1)]).answers[0][1]
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 4)
    assert not data.records
    assert bench.read([ask(0, 5, last_fetched_epoch=3)]).answers[0][1].diverging_epoch.epoch == -1


async def test_a_waiting_fetch_is_woken_by_an_append(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    waiting = await bench.wait([ask(0), ask(1)], parameters(max_wait_ms=60_000))
    size = append(bench.partitions[1]).bytes
    found = await asyncio.wait_for(waiting.result, DEADLINE)
    assert sizes(found) == [0, size]


async def test_min_bytes_adds_up_over_appends_and_partitions(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    size = append(bench.partitions[0]).bytes
    waiting = await bench.wait([ask(0), ask(1)], parameters(max_wait_ms=60_000, min_bytes=3 * size))
    append(bench.partitions[1])
    await asyncio.sleep(0)
    assert not waiting.result.done()
    append(bench.partitions[0])
    found = await asyncio.wait_for(waiting.result, DEADLINE)
    assert sizes(found) == [2 * size, size]


async def test_when_the_time_is_up_it_answers_with_what_there_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    waiting = await bench.wait([ask(0)], parameters(max_wait_ms=20))
    found = await asyncio.wait_for(waiting.result, DEADLINE)
    assert sizes(found) == [0]


async def test_losing_the_leadership_answers_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    waiting = await bench.wait([ask(0)], parameters(max_wait_ms=60_000))
    bench.partitions[0].make_follower(state(leader=2, epoch=1))
    found = await asyncio.wait_for(waiting.result, DEADLINE)
    assert found.answers[0][1].error_code == Errors.NOT_LEADER_OR_FOLLOWER


async def test_waiting_reads_nothing_until_something_happens(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    reads = 0
    find = bench.find

    def counting(topic: str, index: int) -> Partition:
        nonlocal reads
        reads += 1
        return find(topic, index)

    bench.reader = PartitionReader(counting, lambda: 0)
    asks = [ask(0), ask(1)]
    waiting = await bench.wait(asks, parameters(max_wait_ms=60_000))
    assert reads == 2
    for _ in range(50):
        await asyncio.sleep(0)
    assert reads == 2
    for _ in range(10):  # ten appends before the loop turns make one answer
        append(bench.partitions[0])
    await asyncio.wait_for(waiting.result, DEADLINE)
    assert reads == 4


async def test_a_consumer_is_woken_when_the_watermark_follows_the_append(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    led = bench.partitions[0]
    led.make_leader(state(replicas=(1, 2), epoch=1), 0)
    size = append(led).bytes  # before the fetch begins to wait
    waiting = await bench.wait([ask(0)], parameters(max_wait_ms=60_000))
    more = append(led).bytes
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.result.done()  # appended, and not replicated
    led.record_follower_fetch(2, 1, 0, 1)
    assert sizes(await asyncio.wait_for(waiting.result, DEADLINE)) == [size]
    waiting = await bench.wait([ask(0, 1)], parameters(max_wait_ms=60_000))
    led.record_follower_fetch(2, 2, 0, 2)
    assert sizes(await asyncio.wait_for(waiting.result, DEADLINE)) == [more]
