"""Consumers of the consumer protocol that come, go, die, fall silent and lose answers, in random order; the coordinator
fails over, or cannot write, in between.

What must always be so: no partition is owned by two of them, the coordinator's books agree with themselves, and every
request is answered. In the end, when nothing more happens, every partition is owned, evenly.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from pybroker.coordinator.consumer.group import ConsumerGroup
from pybroker.coordinator.consumer.heartbeat import Beat
from pybroker.coordinator.consumer.settings import ConsumerSettings
from pybroker.coordinator.effects import Reply
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.coordinator.consumer_side import ConsumerHarness

GONE = {Errors.FENCED_MEMBER_EPOCH, Errors.UNKNOWN_MEMBER_ID, Errors.GROUP_ID_NOT_FOUND}
AGAIN = {Errors.COORDINATOR_NOT_AVAILABLE, Errors.NOT_COORDINATOR, Errors.UNRELEASED_INSTANCE_ID}


class Client:
    """A consumer: owns partitions, gives up at once what it is told to, and says so with its next heartbeat."""

    def __init__(self, world: World, number: int, instance_id: str | None) -> None:
        self.world = world
        self.instance_id = instance_id
        self.member_id = f"m{number}"
        self.topics = world.some_topics()
        self.regex = "t.*" if world.random.random() < 0.2 else ""
        self.assignor = world.random.choice([None, None, "range", "uniform"])
        self.epoch = 0
        self.assigned: set[tuple[bytes, int]] = set()
        self.owned: set[tuple[bytes, int]] = set()
        self.waiting = False
        self.dead = False
        self.said: object = None

    def beat(self, lost: bool = False) -> None:
        """One heartbeat. `lost`: its answer does not come through."""
        if self.waiting:
            return
        joining = self.epoch == 0
        full = joining or self.said is None  # after an answer that did not come everything is said, and asked for
        self.owned &= self.assigned
        owned = None if not joining and self.said == self.owned else [] if joining else self._report()
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=5000 if full else -1,
            subscribed_topic_names=self.topics if full or self.world.random.random() < 0.2 else None,
            subscribed_topic_regex=self.regex if full else None,
            server_assignor=self.assignor if full else None,
            topic_partitions=owned,
        )
        self.said = set(self.owned)
        self.waiting = True
        self.world.send(request, self._answered if not lost else self._lost)

    def _report(self) -> list[TopicPartitions]:
        topics: dict[bytes, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            topics.setdefault(topic_id, []).append(partition)
        return [TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in topics.items()]

    def _lost(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.waiting = False
        self.said = None

    def _answered(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.waiting = False
        if self.dead:
            return
        if answer.error_code in GONE:
            self.abandon()
        elif answer.error_code in AGAIN:
            self.said = None
        else:
            assert answer.error_code == 0, answer
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = {
                    (each.topic_id, partition)
                    for each in answer.assignment.topic_partitions
                    for partition in each.partitions
                }
                gained = self.assigned - self.owned
                self.owned &= self.assigned
                self.owned |= gained

    def abandon(self) -> None:
        self.epoch, self.said = 0, None
        self.assigned, self.owned = set(), set()

    def leave(self, epoch: int = -1) -> None:
        self.dead = True
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )
        self.world.send(request, lambda answer: None)
        self.abandon()


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = ConsumerHarness(ConsumerSettings(session_timeout_ms=10_000, assignment_interval_ms=500))
        self.harness.catalog.create("t0", 4)
        self.harness.catalog.create("t1", 3)
        self.harness.catalog.create("t2", 1)
        self.clients: list[Client] = []
        self.came = 0
        self.asked = self.answered = 0

    def some_topics(self) -> list[str]:
        return self.random.choice([["t0", "t1"], ["t0", "t1"], ["t0", "t1", "t2"], ["t1"], ["t0", "missing"]])

    def send(self, request: ConsumerGroupHeartbeatRequest, answered: Any) -> None:
        self.asked += 1

        def count(answer: ConsumerGroupHeartbeatResponse) -> None:
            self.answered += 1
            answered(answer)

        beat = Beat(request, 1, "c", "/127.0.0.1", lambda topic: True)
        harness = self.harness
        harness.decide(lambda effects: harness.consumer.heartbeat(beat, Reply(1, count), effects))

    # what happens
    def come(self) -> None:
        if len(self.clients) < 6:
            self.came += 1
            instance_id = f"i{self.came}" if self.random.random() < 0.3 else None
            self.clients.append(Client(self, self.came, instance_id))
            self.clients[-1].beat()

    def beat(self) -> None:
        if self.clients:
            self.random.choice(self.clients).beat(lost=self.random.random() < 0.1)

    def subscribe(self) -> None:
        if self.clients:
            client = self.random.choice(self.clients)
            client.topics = self.some_topics()

    def go(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            if client.epoch:
                client.leave()
            else:
                client.dead = True

    def die(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            client.dead = True
            client.abandon()

    def restart_static(self) -> None:
        static = [client for client in self.clients if client.instance_id is not None and client.epoch > 0]
        if static:
            client = self.random.choice(static)
            client.leave(-2)
            self.clients.remove(client)
            self.came += 1
            again = Client(self, self.came, client.instance_id)
            if self.random.random() < 0.7:
                again.topics, again.regex = client.topics, client.regex
            self.clients.append(again)
            again.beat()

    def topic_grows(self) -> None:
        topic = self.harness.catalog.topics["t2"]
        if topic.partitions < 5:
            self.harness.catalog.grow("t2", topic.partitions + 1)

    def wait(self) -> None:
        self.harness.advance(self.random.choice([100, 300, 700, 2000, 4000]))

    def hold(self) -> None:
        """Writes are not committed for a while."""
        self.harness.held = True

    def release(self) -> None:
        self.harness.release(self.random.choice([Errors.NONE, Errors.NONE, Errors.REQUEST_TIMED_OUT]))

    def write_fails(self) -> None:
        self.harness.failing = Errors.NOT_ENOUGH_REPLICAS

    def fail_over(self) -> None:
        """The log keeps what was committed, and perhaps some of the rest."""
        harness = self.harness
        whole = self.random.random() < 0.5
        harness.fail_over(None if whole else harness.committed)

    def check(self) -> None:
        group = self.harness.shard.groups.get("g")
        members = group.state.members if isinstance(group, ConsumerGroup) else {}
        seen: dict[tuple[bytes, int], str] = {}
        for client in self.clients:
            known = members.get(client.member_id)
            if known is None or known.epoch < 0:
                continue  # it was taken out and has not heard of it; it can't commit any more
            for place in client.owned:
                assert place not in seen, f"{place} belongs to {seen[place]} and {client.member_id}"
                seen[place] = client.member_id
        if isinstance(group, ConsumerGroup):
            claims = {
                (topic_id, partition): member.member_id
                for member in members.values()
                for owned in (member.assigned, member.revoking)
                for topic_id, epochs in owned.items()
                for partition in epochs
            }
            assert claims == group.state.owners
            assert group.state.target_epoch <= group.state.epoch
            assert all(member.epoch <= group.state.target_epoch for member in members.values())


STEPS = (
    [World.beat] * 14 + [World.come] * 3 + [World.wait] * 4 + [World.go, World.die, World.restart_static]
    + [World.subscribe, World.topic_grows, World.hold, World.release, World.release, World.write_fails, World.fail_over]
)  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_model(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        world.random.choice(STEPS)(world)
        world.check()
    settle(world)


def settle(world: World) -> None:
    """Nothing happens any more but heartbeats: all get what is theirs."""
    harness = world.harness
    harness.failing = None
    harness.release()
    for _ in range(40):
        harness.advance(1000)
        for client in world.clients:
            client.beat()
            world.check()
    assert world.answered == world.asked
    if not world.clients:
        return
    group = harness.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    assert group.state_name == "Stable"
    assert set(group.state.members) == {client.member_id for client in world.clients}
    topics = {name for client in world.clients for name in client.topics}
    if any(client.regex for client in world.clients):
        topics |= set(harness.catalog.topics)
    wanted = {
        (topic.topic_id, partition)
        for name, topic in harness.catalog.topics.items()
        if name in topics
        for partition in range(topic.partitions)
    }
    owned = [place for client in world.clients for place in client.owned]
    assert sorted(owned) == sorted(wanted)
    log_is_enough(world, group)


def log_is_enough(world: World, group: ConsumerGroup) -> None:
    """And none of it is known to the coordinator alone."""
    before = group.state
    world.harness.fail_over()
    after = world.harness.shard.groups["g"]
    assert isinstance(after, ConsumerGroup)
    assert after.state.members == before.members
    assert after.state.target == before.target
    assert (after.state.epoch, after.state.target_epoch) == (before.epoch, before.target_epoch)
