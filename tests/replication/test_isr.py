"""ISR changes: what is proposed when, and what the controller's answers do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.protocol.clock import ManualClock
from pybroker.protocol.codec import encode_bytes
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from pybroker.replication.isr import IsrChanges, IsrSender, KnownState
from pybroker.replication.leader import NEVER_MS, OUTSIDE_MS
from pybroker.replication.partition import Partition
from tests.replication.cluster_model import ModelLog

LAG, TOPIC_ID = 100, b"\5" * 16


class Bench:
    """Leads `count` partitions of a topic, replicas 1, 2 and 3."""

    def __init__(self, count: int = 1, isr: tuple[int, ...] = (1, 2, 3)) -> None:
        self.clock = ManualClock()
        self.known: KnownState | None = None
        self.alive = {1, 2, 3}
        self.changes = IsrChanges(
            1, self.clock, LAG, is_alive=self.alive.__contains__, known=lambda *_: self.known
        )
        self.partitions = []
        for index in range(count):
            led = Partition("t", index, TOPIC_ID, ModelLog(), 1)  # type: ignore[arg-type]
            led.isr_keeper = self.changes
            led.make_leader(
                LeaderAndIsrPartitionState(
                    partition_index=index, leader=1, leader_epoch=4, partition_epoch=7, replicas=[1, 2, 3],
                    isr=list(isr),
                ),
                0,
            )  # fmt: skip
            self.partitions.append(led)

    def append(self, index: int = 0) -> None:
        self.partitions[index].append(1, 1, 9)  # type: ignore[arg-type]

    def fetch(self, replica: int, offset: int, index: int = 0) -> None:
        self.partitions[index].record_follower_fetch(replica, offset, 0, self.clock.monotonic_ms())

    def check(self, last_fetch_ms: int = NEVER_MS) -> list[str]:
        found = []
        for led in self.partitions:
            found += self.changes.check(led, lambda _: last_fetch_ms)
        return found

    def asked(self) -> list[tuple[int, list[int], int, int]]:
        """(partition, ISR, leader epoch, partition epoch) of what would be sent now."""
        taken = self.changes.take()
        if taken is None:
            return []
        self.taken = taken[0]
        return [
            (each.partition_index, each.new_isr, each.leader_epoch, each.partition_epoch)
            for topic in taken[1].topics
            for each in topic.partitions
        ]

    def answer(self, error: Errors = Errors.NONE, isr: tuple[int, ...] = (), partition_epoch: int = 8) -> bool:
        row = ResponsePartitionData(
            partition_index=0, error_code=error, leader_id=1, leader_epoch=4, isr=list(isr),
            partition_epoch=partition_epoch,
        )  # fmt: skip
        response = AlterPartitionResponse(topics=[ResponseTopicData(topic_id=TOPIC_ID, partitions=[row])])
        return self.changes.answered(self.taken, response)


def test_a_follower_that_lags_leaves_after_a_warning() -> None:
    bench = Bench()
    bench.append()
    bench.fetch(2, 1)
    bench.clock.advance(60)
    assert bench.check() == ["t-0 at broker 3"]
    assert bench.check() == []  # said once
    assert not bench.asked()
    bench.clock.advance(50)
    bench.check()
    assert bench.asked() == [(0, [1, 2], 4, 7)]
    assert bench.partitions[0].log.high_watermark == 0  # not before it is written
    assert bench.answer(isr=(1, 2))
    assert bench.partitions[0].isr == (1, 2)
    assert bench.partitions[0].partition_epoch == 8
    assert bench.partitions[0].log.high_watermark == 1


def test_a_follower_that_fetches_other_partitions_of_its_session_is_not_late() -> None:
    bench = Bench()
    bench.fetch(2, 0)
    bench.fetch(3, 0)
    bench.clock.advance(1000)
    bench.check(last_fetch_ms=990)  # idle, at the end; then the log grows
    bench.append()
    assert bench.check() == []
    assert not bench.asked()


def test_it_comes_back_when_it_has_the_watermark() -> None:
    bench = Bench(isr=(1, 2))
    bench.append()
    bench.fetch(2, 1)
    bench.fetch(3, 0)
    assert not bench.asked()
    bench.fetch(3, 1)
    assert bench.asked() == [(0, [1, 2, 3], 4, 7)]
    bench.append()
    bench.fetch(2, 2)
    assert bench.partitions[0].log.high_watermark == 1  # the one that is joining counts already
    assert bench.answer(isr=(1, 2, 3))


def test_while_a_change_is_under_way_there_is_no_other_but_then_it_is_made_up_for() -> None:
    bench = Bench(isr=(1,))
    bench.fetch(2, 0)
    bench.fetch(3, 0)
    assert bench.asked() == [(0, [1, 2], 4, 7)]
    assert bench.answer(isr=(1, 2))
    assert bench.asked() == [(0, [1, 2, 3], 4, 8)]


def test_under_load_the_watermark_waits_for_one_that_keeps_up_but_not_for_ever() -> None:
    bench = Bench(isr=(1,))
    bench.alive.remove(3)  # may not join yet
    bench.fetch(3, 0)
    bench.append()
    assert bench.partitions[0].log.high_watermark == 0
    bench.clock.advance(150)
    bench.check()
    assert bench.partitions[0].log.high_watermark == 1


def test_changes_of_many_partitions_go_together() -> None:
    bench = Bench(count=3)
    for index in range(3):
        bench.append(index)
    bench.clock.advance(150)
    bench.check()
    assert bench.asked() == [(index, [1], 4, 7) for index in range(3)]


@pytest.mark.parametrize("error", [Errors.INELIGIBLE_REPLICA, Errors.OPERATION_NOT_ATTEMPTED])
def test_a_refused_set_is_given_up(error: Errors) -> None:
    bench = Bench(isr=(1, 2))
    bench.fetch(3, 0)
    assert bench.asked()
    assert bench.answer(error)
    leader = bench.partitions[0].leader
    assert leader is not None and leader.in_flight is None
    assert not bench.asked()


def test_who_was_refused_is_neither_proposed_again_at_once_nor_waited_for() -> None:
    bench = Bench(isr=(1, 2))
    bench.append()
    bench.fetch(2, 1)
    bench.fetch(3, 1)
    assert bench.asked()
    bench.answer(Errors.INELIGIBLE_REPLICA)
    bench.append()
    bench.fetch(2, 2)
    assert bench.partitions[0].log.high_watermark == 2
    bench.fetch(3, 2)
    assert not bench.asked()
    bench.clock.advance(OUTSIDE_MS)
    bench.fetch(3, 2)
    assert bench.asked() == [(0, [1, 2, 3], 4, 7)]


def test_one_that_was_about_to_join_and_dies_is_waited_for_no_more() -> None:
    bench = Bench(isr=(1, 2))
    bench.alive.discard(3)  # the controller has not told of it yet: it may not join
    bench.append()
    bench.fetch(2, 1)
    bench.fetch(3, 1)
    bench.append()
    bench.fetch(2, 2)
    assert bench.partitions[0].log.high_watermark == 1
    bench.changes.lost(bench.partitions, {3})
    assert bench.partitions[0].log.high_watermark == 2


def test_unknown_errors_are_asked_again() -> None:
    bench = Bench(isr=(1, 2))
    bench.fetch(3, 0)
    first = bench.asked()
    assert not bench.answer(Errors.UNKNOWN_SERVER_ERROR)
    assert bench.asked() == first


def test_what_the_controller_wrote_unheard_is_learned_from_metadata() -> None:
    bench = Bench(isr=(1, 2))
    bench.fetch(3, 0)
    bench.asked()
    assert not bench.answer(Errors.INVALID_UPDATE_VERSION)  # nothing known yet: again
    bench.asked()
    bench.known = KnownState(4, 9, (1, 2, 3))
    assert bench.answer(Errors.INVALID_UPDATE_VERSION)
    assert (bench.partitions[0].isr, bench.partitions[0].partition_epoch) == ((1, 2, 3), 9)


def test_a_change_of_an_earlier_leadership_is_dropped() -> None:
    bench = Bench(isr=(1, 2))
    bench.fetch(3, 0)
    bench.asked()
    led = bench.partitions[0]
    led.make_leader(
        LeaderAndIsrPartitionState(
            partition_index=0, leader=1, leader_epoch=5, partition_epoch=9, replicas=[1, 2, 3], isr=[1, 2]
        ),
        0,
    )
    assert bench.answer(isr=(1, 2, 3))
    assert (led.isr, led.partition_epoch) == ((1, 2), 9)


class Controller:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[AlterPartitionRequest] = []

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        response: AlterPartitionResponse = answer
        return response


async def test_it_asks_until_there_is_an_answer() -> None:
    bench = Bench(isr=(1, 2))
    row = ResponsePartitionData(partition_index=0, leader_id=1, leader_epoch=4, isr=[1, 2, 3], partition_epoch=8)
    taken = AlterPartitionResponse(topics=[ResponseTopicData(topic_name="t", partitions=[row])])
    refused = AlterPartitionResponse(error_code=Errors.NOT_CONTROLLER)
    controller = Controller(ConnectionError("gone"), refused, taken)
    sender = IsrSender(bench.changes, controller)
    bench.fetch(3, 0)
    async with asyncio.timeout(5):
        while bench.partitions[0].isr != (1, 2, 3):
            await asyncio.sleep(0.01)
    assert len(controller.asked) == 3
    sender.close()


def test_the_bytes_are_kafkas() -> None:
    """AlterPartition v3 of a Kafka 3.9.2 leader that left a stalled follower out, behind its header."""
    topic_id = bytes.fromhex("07e8daf6715f4115bf0df26aedbc123f")
    led = Partition("t-a", 1, topic_id, ModelLog(), 2)  # type: ignore[arg-type]
    changes = IsrChanges(2, ManualClock(), LAG, is_alive=lambda _: True, known=lambda *_: None)
    led.isr_keeper = changes
    led.make_leader(
        LeaderAndIsrPartitionState(partition_index=1, leader=2, replicas=[2, 1, 3], isr=[2, 3]), now_ms=0
    )
    led.record_follower_fetch(1, 0, 0, 0)
    assert led.leader is not None
    led.commit_isr([2, 1, 3], 0)
    changes.take()
    led.append(1, 1, 9)  # type: ignore[arg-type]
    led.record_follower_fetch(1, 1, 0, 0)
    led.leader.followers[3].last_caught_up_ms = -LAG - 1
    changes.check(led, lambda _: NEVER_MS)
    taken = changes.take()
    assert taken is not None
    taken[1].broker_epoch = 69
    assert encode_bytes(taken[1], 3).hex() == (
        "0000000200000000000000450207e8daf6715f4115bf0df26aedbc123f0200000001000000000300000002ffffffffffffffff00"
        "00000001ffffffffffffffff000000000000000000"
    )
