"""Consumers of both protocols in one group, in random order: it becomes a group of the consumer protocol and a classic
one again, over and over. No partition is ever owned by two of them; in the end all are owned."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.coordinator.classic import ClassicGroup
from pybroker.coordinator.classic_join import Join
from pybroker.coordinator.consumer.group import ConsumerGroup
from pybroker.coordinator.effects import Effects, Reply
from pybroker.protocol import codec
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from pybroker.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from pybroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pybroker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pybroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.coordinator.test_consumer_model import Client, World

PARTITIONS = 4
JOIN, SYNC, STABLE = "join", "sync", "stable"
SUBSCRIPTION = b"\0\1" + codec.encode_bytes(ConsumerProtocolSubscription(topics=["t0"]), 1)


class ClassicClient:
    """A consumer of the classic protocol that gives up everything before it joins again."""

    def __init__(self, world: Both) -> None:
        self.world = world
        self.member_id, self.generation, self.phase = "", -1, JOIN
        self.members: list[str] = []  # as its leader
        self.owned: set[tuple[bytes, int]] = set()
        self.waiting = self.dead = False

    def beat(self, lost: bool = False) -> None:
        if not self.waiting:
            {JOIN: self._join, SYNC: self._sync, STABLE: self._heartbeat}[self.phase]()

    def abandon(self) -> None:
        self.owned = set()
        self.phase = JOIN

    def leave(self) -> None:
        self.dead = True
        self.abandon()
        request = LeaveGroupRequest(group_id="g")
        leaving = [MemberIdentity(member_id=self.member_id)]
        self.world.harness.decide(lambda effects: self.world.harness.shard.leave(request, leaving, effects))

    def _ask(self, ask: Any, answered: Any) -> None:
        self.waiting = True
        self.world.asked += 1

        def count(answer: Any) -> None:
            self.waiting = False
            self.world.answered += 1
            if not self.dead:
                answered(answer)

        effects = Effects()
        ask(Reply(9, count), effects)
        self.world.harness.run(effects)

    def _failed(self, error: int) -> bool:
        if error == Errors.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if error:
            self.abandon()
        return bool(error)

    def _join(self) -> None:
        self.owned = set()
        request = JoinGroupRequest(
            group_id="g", member_id=self.member_id, session_timeout_ms=10_000, rebalance_timeout_ms=5_000,
            protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
        )  # fmt: skip

        def joined(answer: Any) -> None:
            if answer.error_code == Errors.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            elif not self._failed(answer.error_code):
                self.member_id, self.generation, self.phase = answer.member_id, answer.generation_id, SYNC
                self.members = [each.member_id for each in answer.members]

        shard = self.world.harness.shard
        self._ask(lambda reply, effects: shard.join(Join(request, "c", "/h", reply), effects), joined)

    def _sync(self) -> None:
        given = [
            SyncGroupRequestAssignment(member_id=member_id, assignment=_range(number, len(self.members)))
            for number, member_id in enumerate(self.members)
        ]
        request = SyncGroupRequest(
            group_id="g", generation_id=self.generation, member_id=self.member_id, assignments=given
        )

        def synced(answer: Any) -> None:
            if not self._failed(answer.error_code):
                self.phase = STABLE
                assignment = codec.decode(ConsumerProtocolAssignment, 1, answer.assignment, 2)[0]
                topic_id = self.world.harness.catalog.topics["t0"].topic_id
                self.owned = {
                    (topic_id, number) for each in assignment.assigned_partitions for number in each.partitions
                }

        self._ask(lambda reply, effects: self.world.harness.shard.sync(request, reply, effects), synced)

    def _heartbeat(self) -> None:
        harness = self.world.harness
        error = harness.decide(
            lambda effects: harness.shard.heartbeat("g", self.member_id, None, self.generation, effects)
        )
        self._failed(error)


def _range(number: int, count: int) -> bytes:
    mine = [partition for partition in range(PARTITIONS) if partition % count == number]
    assigned = [TopicPartition(topic="t0", partitions=mine)] if mine else []
    return b"\0\1" + codec.encode_bytes(ConsumerProtocolAssignment(assigned_partitions=assigned), 1)


class Both(World):
    """World's happenings, with classic clients among the others."""

    def some_topics(self) -> list[str]:
        return ["t0"]

    def come(self) -> None:
        if len(self.clients) < 6:
            self.came += 1
            client: Any = ClassicClient(self) if self.random.random() < 0.5 else Client(self, self.came, None)
            client.regex = ""
            self.clients.append(client)
            client.beat()

    def go(self) -> None:
        if self.clients:
            client: Any = self.clients.pop(self.random.randrange(len(self.clients)))
            client.leave()

    def check(self) -> None:
        group = self.harness.shard.groups.get("g")
        known: set[str] = set()
        if isinstance(group, ConsumerGroup):
            known = set(group.state.members)
            assert all(each.epoch <= group.state.target_epoch for each in group.state.members.values())
        elif isinstance(group, ClassicGroup):
            known = {member.member_id for member in group.members}
        seen: dict[tuple[bytes, int], str] = {}
        for client in self.clients:
            if client.member_id in known:
                for place in client.owned:
                    assert place not in seen, f"{place} belongs to {seen[place]} and {client.member_id}"
                    seen[place] = client.member_id


STEPS = (
    [Both.beat] * 18 + [Both.come] * 3 + [Both.wait] * 3 + [Both.go] * 2 + [Both.die, Both.fail_over, Both.write_fails]
)  # fmt: skip


@pytest.mark.parametrize("seed", range(80))
def test_model(seed: int) -> None:
    world = Both(seed)
    for _ in range(120):
        world.random.choice(STEPS)(world)
        world.check()
    world.harness.failing = None
    for _ in range(120):
        world.harness.advance(500)
        for client in world.clients:
            client.beat()
            world.check()
    assert world.answered == world.asked
    if not world.clients:
        return
    owned = [number for client in world.clients for _, number in client.owned]
    assert sorted(owned) == list(range(PARTITIONS))
    new = any(isinstance(client, Client) for client in world.clients)
    assert world.harness.shard.groups["g"].type == ("consumer" if new else "classic")
