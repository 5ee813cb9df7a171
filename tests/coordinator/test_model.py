"""Members that join, work, leave, die, stall and restart in random order, on a coordinator that fails over at random
records and whose writes are slow or fail. What must hold whatever happens:

- no partition is owned by two members of one generation,
- every request is answered in the end,
- what was committed and acknowledged is never lost, and offsets never go back,
- a group that nobody disturbs becomes stable and stays so.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pybroker.coordinator.effects import Effects
from pybroker.coordinator.settings import GroupSettings
from pybroker.coordinator.shard import Committer
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.join_group import JoinGroupRequestProtocol
from pybroker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pybroker.protocol.messages.sync_group import SyncGroupRequestAssignment
from tests.coordinator.harness import Harness

PARTITIONS = 6
SESSION_MS, REBALANCE_MS, BEAT_MS = 10_000, 20_000, 3_000


class Consumer:
    """A well-behaved member: joins, syncs, beats, commits what it owns; starts over when it is told to."""

    def __init__(self, group: ModelGroup, name: str, instance_id: str | None) -> None:
        self.group, self.name, self.instance_id = group, name, instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: set[int] = set()
        self.waiting = 0  # requests without an answer
        self.alive = True
        self.life = 0  # counts restarts: answers of an earlier life are nobody's
        self.phase = "out"  # out, joining, syncing, in

    def act(self) -> None:
        """One step of its own accord."""
        if not self.alive or self.waiting:
            return
        if self.phase == "out":
            self._join()
        elif self.phase == "in":
            self._commit() if self.owned and self.group.random.random() < 0.5 else self._beat()

    def _ask(self, answered: Any) -> Any:
        self.waiting += 1
        self.group.unanswered += 1
        life = self.life

        def take(answer: Any) -> None:
            self.group.unanswered -= 1
            if self.alive and life == self.life:
                self.waiting -= 1
                answered(answer)

        return take

    def _join(self) -> None:
        self.phase = "joining"
        self.owned = set()
        metadata = self.group.random.choice([b"v1", b"v1", b"v2"])
        self.group.harness.join(
            self._ask(self._joined),
            self.name,
            self.group.random.choice([3, 8, 9]) if self.instance_id is None else 9,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )

    def _joined(self, answer: Any) -> None:
        self.phase = "out"
        error = Errors(answer.error_code)
        if error == Errors.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif error in (Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID):
            self.member_id = ""
        if error:
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        self.phase = "syncing"
        assignments = []
        if answer.leader == self.member_id and not answer.skip_assignment:
            members = [each.member_id for each in answer.members]
            shares: dict[str, list[int]] = {member: [] for member in members}
            for partition in range(PARTITIONS):
                shares[members[(partition + self.generation) % len(members)]].append(partition)
            assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=bytes(share))
                for member, share in shares.items()
            ]
        self.group.harness.sync(
            self._ask(self._synced),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            generation_id=self.generation,
            assignments=assignments,
        )

    def _synced(self, answer: Any) -> None:
        self.phase = "out"
        error = Errors(answer.error_code)
        if error in (Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID):
            self.member_id = ""
        if error:
            return
        self.phase = "in"
        self.owned = set(answer.assignment)
        self.group.check_owners()

    def _beat(self) -> None:
        harness = self.group.harness
        self._told(
            harness.decide(
                lambda effects: harness.shard.heartbeat("g", self.member_id, self.instance_id, self.generation, effects)
            )
        )

    def _told(self, error: Errors) -> None:
        """A heartbeat's or a commit's answer."""
        if error == Errors.NONE or error in (Errors.COORDINATOR_NOT_AVAILABLE, Errors.NOT_COORDINATOR):
            return
        self.phase = "out"
        self.owned = set()
        if error != Errors.REBALANCE_IN_PROGRESS and error != Errors.ILLEGAL_GENERATION:
            self.member_id = ""

    def _commit(self) -> None:
        group = self.group
        offsets = {("t", partition): group.position(partition) + 1 for partition in sorted(self.owned)}
        owned_in = self.generation

        def answered(errors: list[Errors]) -> None:
            for (_, partition), error in zip(offsets, errors, strict=True):
                if not error:
                    group.acknowledged[partition] = max(group.acknowledged[partition], offsets["t", partition])
            if self.generation == owned_in and self.phase == "in":
                self._told(errors[0])

        for (_, partition), offset in offsets.items():
            group.sent[partition] = offset
        group.harness.commit(
            self._ask(answered), offsets, Committer("g", self.member_id, self.instance_id, self.generation)
        )

    def leave(self) -> None:
        if self.member_id and self.instance_id is None:
            leaving = MemberIdentity(member_id=self.member_id)
            shard = self.group.harness.shard
            request = LeaveGroupRequest(group_id="g", members=[leaving])
            self.group.harness.decide(lambda effects: shard.leave(request, [leaving], effects))
        self.die()

    def die(self) -> None:
        self.alive, self.owned, self.phase = False, set(), "out"

    def start(self) -> None:
        """A new life under the same name."""
        self.alive, self.waiting, self.member_id, self.generation = True, 0, "", -1
        self.phase, self.owned = "out", set()
        self.life += 1


class ModelGroup:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        delay = self.random.choice([0, 0, 3000])
        self.harness = Harness(GroupSettings(initial_rebalance_delay_ms=delay))
        self.unanswered = 0
        self.acknowledged = [0] * PARTITIONS
        self.sent = [0] * PARTITIONS
        self.consumers = [Consumer(self, f"m{number}", f"i{number}" if number < 2 else None) for number in range(5)]

    def position(self, partition: int) -> int:
        return self.sent[partition]

    def committed(self, partition: int) -> int:
        state = next(iter(self.harness.shard.fetch("g", [("t", partition)], False)))[1]
        return 0 if state.offset is None else state.offset.offset

    def check_owners(self) -> None:
        owners: dict[tuple[int, int], str] = {}
        for consumer in self.consumers:
            if consumer.alive and consumer.phase == "in":
                for partition in consumer.owned:
                    other = owners.setdefault((consumer.generation, partition), consumer.name)
                    assert other == consumer.name, f"{partition} belongs to {other} and {consumer.name}"

    def check_offsets(self) -> None:
        for partition in range(PARTITIONS):
            assert self.committed(partition) >= self.acknowledged[partition]

    def step(self) -> None:
        harness, random = self.harness, self.random
        consumer = random.choice(self.consumers)
        match random.choices(
            ("act", "time", "die", "leave", "start", "hold", "release", "fail", "fail over"),
            (70, 20, 1, 1, 6, 3, 2, 1, 1),
        )[0]:
            case "act":
                consumer.act()
            case "time":
                harness.advance(random.choice([1, 100, 1000, BEAT_MS]))
            case "die":
                consumer.die()
            case "leave":
                if consumer.alive:
                    consumer.leave()
            case "start":
                if not consumer.alive or random.random() < 0.1:
                    consumer.start()
            case "hold":
                harness.held = True
            case "release":
                harness.release(random.choice([Errors.NONE] * 5 + [Errors.REQUEST_TIMED_OUT]))
            case "fail":
                harness.failing = random.choice([Errors.NOT_ENOUGH_REPLICAS, Errors.REQUEST_TIMED_OUT])
            case "fail over":
                harness.fail_over(random.randint(harness.committed, len(harness.log)))
        self.check_owners()
        if not harness.pending:
            self.check_offsets()

    def calm_down(self) -> None:
        """No more trouble: all who live go on until they are in."""
        self.harness.failing = None
        self.harness.release()
        for consumer in self.consumers[:3]:
            if not consumer.alive:
                consumer.start()
        self.work(4 * REBALANCE_MS)

    def work(self, ms: int) -> None:
        for _ in range(ms // 1000):
            self.harness.advance(1000)
            for consumer in self.consumers:
                consumer.act()
            self.check_owners()
            self.check_offsets()


@pytest.mark.parametrize("seed", range(60))
def test_random_lives(seed: int) -> None:
    group = ModelGroup(seed)
    for _ in range(800):
        group.step()
    group.calm_down()
    alive = [consumer for consumer in group.consumers if consumer.alive]
    state = group.harness.shard.describe("g", 6)
    assert state.group_state == "Stable"
    assert group.unanswered == 0
    assert {consumer.phase for consumer in alive} == {"in"}
    assert sorted(partition for consumer in alive for partition in consumer.owned) == list(range(PARTITIONS))
    generations = {consumer.generation for consumer in alive}
    group.work(5 * SESSION_MS)
    assert {consumer.generation for consumer in alive} == generations, "a stable group stays stable"


@pytest.mark.parametrize("seed", range(5))
def test_fail_over_at_every_record(seed: int) -> None:
    """Whatever the log holds, a group comes up from it, and goes on."""
    group = ModelGroup(seed)
    for _ in range(300):
        group.step()
    group.harness.release()
    log = list(group.harness.log)
    for upto in range(len(log) + 1):
        harness = Harness(group.harness.settings)
        harness.log = log[:upto]
        harness.fail_over()
        described = harness.shard.describe("g", 5)
        assert described.group_state in ("Dead", "Empty", "Stable")
        harness.advance(SESSION_MS + 1)
        assert harness.shard.describe("g", 5).group_state in ("Dead", "Empty", "PreparingRebalance")
        effects = Effects()
        harness.shard.unloaded(effects)
        assert not effects.answers
