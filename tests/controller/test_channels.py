"""The order in which brokers hear: one queue each, and new leaders before all others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pybroker.controller import channels
from pybroker.controller.channels import Outbox
from pybroker.controller.requests import ControllerRequest
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest
from pybroker.protocol.schema import Message


class Brokers:
    """Remembers what reaches whom; `silent` ones answer when they are let go, `gone` ones can't be reached."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, str]] = []
        self.silent: dict[int, asyncio.Event] = {}
        self.gone: set[int] = set()

    async def send(self, broker_id: int, request: ControllerRequest) -> Message:
        if broker_id in self.gone:
            raise ConnectionError("gone")
        self.heard.append((broker_id, type(request).__name__.removesuffix("Request")))
        if broker_id in self.silent:
            await self.silent[broker_id].wait()
        return LeaderAndIsrResponse()

    def forget(self, broker_id: int) -> None:
        pass


class Told:
    """An outbox for brokers 1 to 3, which have all been told something before."""

    def __init__(self) -> None:
        self.brokers, self.idle = Brokers(), asyncio.Event()
        self.outbox = Outbox(self.brokers, lambda *_: None, self._look)

    def _look(self) -> None:
        if self.outbox.idle:
            self.idle.set()

    def put(self, requests: Sequence[tuple[int, ControllerRequest]], *, leaders_first: bool = False) -> None:
        self.idle.clear()
        (self.outbox.put_leaders_first if leaders_first else self.outbox.put)(requests)

    async def settled(self) -> list[tuple[int, str]]:
        await asyncio.wait_for(self.idle.wait(), 5)
        return self.brokers.heard


@pytest.fixture
async def told() -> Told:
    made = Told()
    made.put([(each, UpdateMetadataRequest()) for each in (1, 2, 3)])
    await made.settled()
    made.brokers.heard.clear()
    return made


def led_by(*leaders: int) -> LeaderAndIsrRequest:
    states = [LeaderAndIsrPartitionState(partition_index=at, leader=leader) for at, leader in enumerate(leaders)]
    return LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState(topic_name="t", partition_states=states)])


async def steps() -> None:
    """Lets everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def move(told: Told) -> None:
    """1 and 2 are to lead what 3 led; then all hear of it."""
    told.put([(3, led_by(1, 2)), (1, led_by(1, 2)), (2, led_by(1, 2))], leaders_first=True)
    told.put([(each, UpdateMetadataRequest()) for each in (1, 2, 3)])
    await steps()


async def test_nobody_hears_of_a_leader_that_does_not_know_it_is_one(told: Told) -> None:
    told.brokers.silent[2] = asyncio.Event()
    await move(told)
    assert told.brokers.heard == [(1, "LeaderAndIsr"), (2, "LeaderAndIsr")]
    told.brokers.silent.pop(2).set()
    after = (await told.settled())[2:]
    assert sorted(after) == [(1, "UpdateMetadata"), (2, "UpdateMetadata"), (3, "LeaderAndIsr"), (3, "UpdateMetadata")]
    assert after.index((3, "LeaderAndIsr")) < after.index((3, "UpdateMetadata"))


async def test_a_leader_that_hangs_holds_the_others_for_a_moment(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "GATE_SECONDS", 0.01)
    told.brokers.silent[2] = asyncio.Event()
    await move(told)
    while (3, "UpdateMetadata") not in told.brokers.heard:
        await asyncio.sleep(0.005)
    assert (2, "UpdateMetadata") not in told.brokers.heard
    told.brokers.silent.pop(2).set()
    assert (2, "UpdateMetadata") in await told.settled()


async def test_many_moves_to_a_leader_that_hangs_hold_the_others_no_longer_than_one(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers that do not hear of a new leader epoch cannot fetch, and what producers wait for is not replicated."""
    moves = 20
    monkeypatch.setattr(channels, "GATE_SECONDS", 0.25)
    told.brokers.silent[2] = asyncio.Event()
    began = asyncio.get_running_loop().time()
    for _ in range(moves):
        await move(told)
    while told.brokers.heard.count((3, "UpdateMetadata")) < moves:
        await asyncio.sleep(0.005)
    assert asyncio.get_running_loop().time() - began < moves * 0.25 / 2
    told.outbox.close()


@pytest.mark.parametrize("how", ["unreachable", "forgotten"])
async def test_a_leader_that_is_gone_holds_nobody(told: Told, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(channels, "GATE_SECONDS", 60)
    if how == "unreachable":
        told.brokers.gone.add(2)
    else:
        told.brokers.silent[2] = asyncio.Event()
    await move(told)
    if how == "forgotten":
        told.outbox.keep_only({1, 3})
        await steps()
    assert {(1, "UpdateMetadata"), (3, "LeaderAndIsr"), (3, "UpdateMetadata")} <= set(told.brokers.heard)
    told.outbox.close()


async def test_a_move_without_a_leader_holds_nobody(told: Told) -> None:
    told.put([(1, led_by(-1)), (2, led_by(-1))], leaders_first=True)
    assert sorted(await told.settled()) == [(1, "LeaderAndIsr"), (2, "LeaderAndIsr")]
