"""Consumer groups beyond what scripts tell: timers, limits, writes that wait or fail, states of later releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pybroker.coordinator.classic_join import Join
from pybroker.coordinator.consumer.group import ConsumerGroup
from pybroker.coordinator.consumer.heartbeat import Beat
from pybroker.coordinator.consumer.member import Member, State
from pybroker.coordinator.consumer.reconcile import reconcile
from pybroker.coordinator.consumer.settings import ConsumerSettings
from pybroker.coordinator.consumer.state import Draft, GroupState
from pybroker.coordinator.consumer.topics import compile_regex
from pybroker.coordinator.effects import Effects, Reply, TimerKey
from pybroker.protocol import codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from pybroker.protocol.messages.consumer_group_metadata import ConsumerGroupMetadataValue
from pybroker.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from pybroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pybroker.protocol.messages.sync_group import SyncGroupRequest
from tests.coordinator.consumer_side import ConsumerHarness

TOPIC = b"t" * 16


class Room:
    """A harness, and the answers that have come."""

    def __init__(self, settings: ConsumerSettings | None = None) -> None:
        self.harness = ConsumerHarness(settings)
        self.harness.catalog.create("t", 4)
        self.answers: list[ConsumerGroupHeartbeatResponse] = []

    def beat(self, member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse | None:
        """The answer, if it has come at once."""
        before = len(self.answers)
        effects = self.decide(member_id, epoch, **fields)
        self.harness.run(effects)
        return self.answers[-1] if len(self.answers) > before else None

    def decide(self, member_id: str, epoch: int, **fields: Any) -> Effects:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)
        effects = Effects()
        beat = Beat(request, 1, "c", "/127.0.0.1", lambda topic: topic != "secret")
        self.harness.consumer.heartbeat(beat, Reply(1, self.answers.append), effects)
        return effects

    def join(self, member_id: str, **fields: Any) -> ConsumerGroupHeartbeatResponse | None:
        joining = {"rebalance_timeout_ms": 5000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        return self.beat(member_id, 0, **joining | fields)

    def classic_join(self, member_id: str) -> Any:
        subscription = b"\0\1" + codec.encode_bytes(ConsumerProtocolSubscription(topics=["t"]), 1)
        request = JoinGroupRequest(
            group_id="g", member_id=member_id, session_timeout_ms=10_000, rebalance_timeout_ms=5000,
            protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )  # fmt: skip
        answers: list[Any] = []
        effects = Effects()
        self.harness.shard.join(Join(request, "c", "/127.0.0.1", Reply(9, answers.append)), effects)
        self.harness.run(effects)
        return answers[0]

    @property
    def group(self) -> ConsumerGroup:
        group = self.harness.shard.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group


# -- timers and limits ------------------------------------------------------------------------------------------


def test_a_heartbeat_writes_nothing_and_moves_no_timer() -> None:
    room = Room()
    room.join("m")
    due = room.harness.timers[TimerKey("session", "g", "m")]
    for _ in range(5):
        room.harness.clock.advance(5000)
        effects = room.decide("m", 2)
        assert (effects.writes, effects.timers, len(effects.answers)) == ([], [], 1)
    assert room.harness.timers == {TimerKey("session", "g", "m"): due}
    room.harness.advance(44_000)  # the last heartbeat was 44 seconds ago
    assert "m" in room.group.state.members
    room.harness.advance(1_000)
    assert room.group.state.members == {}
    assert room.harness.timers == {}


def test_a_groups_own_session_timeout() -> None:
    room = Room()
    room.harness.rules._own = lambda group_id: {"consumer.session.timeout.ms": "50000"} if group_id == "g" else {}
    room.join("m")
    room.harness.advance(49_000)
    assert "m" in room.group.state.members
    room.harness.advance(1_000)
    assert not room.group.state.members


def test_the_group_is_full() -> None:
    room = Room(ConsumerSettings(max_size=1))
    room.join("a")
    answer = room.join("b")
    assert answer is not None
    assert (answer.error_code, answer.error_message) == (
        Errors.GROUP_MAX_SIZE_REACHED, "The consumer group has reached its maximum capacity of 1 members."
    )  # fmt: skip
    again = room.join("a")
    assert again is not None and again.error_code == 0


def test_patterns_match_only_what_the_member_may_see() -> None:
    room = Room()
    room.harness.catalog.create("secret", 1)
    room.join("m", subscribed_topic_names=None, subscribed_topic_regex=".*")
    assert room.group.state.regexes[".*"].topics == {"t"}
    assert room.group.is_subscribed_to("t") and not room.group.is_subscribed_to("secret")


def test_a_pattern_matches_whole_names() -> None:
    assert compile_regex("a+").fullmatch("aa") and not compile_regex("a+").fullmatch("aab")


# -- migration --------------------------------------------------------------------------------------------------


def test_the_last_consumer_member_falls_silent_and_the_group_is_classic() -> None:
    room = Room()
    room.join("m")
    room.harness.advance(1000)
    member_id = room.classic_join("").member_id
    joined = room.classic_join(member_id)
    assert (joined.error_code, joined.generation_id) == (0, 3)
    assert set(room.group.state.members) == {"m", member_id}
    request = SyncGroupRequest(group_id="g", generation_id=3, member_id=member_id)
    room.harness.decide(lambda effects: room.harness.shard.sync(request, Reply(5), effects))
    while room.harness.shard.groups["g"].type == "consumer" and room.harness.clock.monotonic_ms() < 60_000:
        room.harness.advance(5_000)
        room.harness.decide(lambda effects: room.harness.shard.heartbeat("g", member_id, None, 3, effects))
    assert room.harness.shard.groups["g"].type == "classic"
    assert room.harness.shard.groups["g"].state_name == "PreparingRebalance"
    room.harness.fail_over()
    assert room.harness.shard.groups["g"].type == "classic"


@pytest.mark.parametrize(("may_upgrade", "error"), [(False, Errors.GROUP_ID_NOT_FOUND), (True, Errors.NONE)])
def test_upgrades_are_a_matter_of_policy(may_upgrade: bool, error: Errors) -> None:
    room = Room(ConsumerSettings(may_upgrade=may_upgrade))
    room.classic_join(room.classic_join("").member_id)
    answer = room.join("m")
    assert answer is not None and answer.error_code == error


def test_an_upgrade_that_can_not_be_written_leaves_the_classic_group() -> None:
    room = Room()
    room.classic_join(room.classic_join("").member_id)
    room.harness.failing = Errors.NOT_ENOUGH_REPLICAS
    answer = room.join("m")
    assert answer is not None and answer.error_code == Errors.COORDINATOR_NOT_AVAILABLE
    assert room.harness.shard.groups["g"].type == "classic"
    again = room.join("m")
    assert again is not None and again.error_code == 0


# -- writes -----------------------------------------------------------------------------------------------------


def test_requests_wait_in_line_while_a_write_is_not_committed() -> None:
    room = Room()
    room.harness.held = True
    assert room.join("a") is None
    assert room.join("b") is None
    assert room.group.state_name == "Empty"
    assert not room.group.is_empty  # so that nobody deletes it
    room.harness.release()
    assert [(answer.member_id, answer.error_code) for answer in room.answers] == [("a", 0), ("b", 0)]
    assert set(room.group.state.members) == {"a", "b"}


def test_a_new_group_that_can_not_be_written_is_none() -> None:
    room = Room()
    room.harness.failing = Errors.NOT_ENOUGH_REPLICAS
    answer = room.join("a")
    assert answer is not None and answer.error_code == Errors.COORDINATOR_NOT_AVAILABLE
    assert room.harness.shard.groups == {}


def test_what_is_in_the_log_counts_though_its_replicas_are_late() -> None:
    room = Room()
    room.harness.held = True
    room.join("a")
    room.harness.release(Errors.REQUEST_TIMED_OUT)
    assert room.answers[-1].error_code == Errors.COORDINATOR_NOT_AVAILABLE
    before = room.group.state.members
    assert set(before) == {"a"}
    room.harness.fail_over()
    assert room.group.state.members == before


def test_the_coordinator_moves_while_requests_wait() -> None:
    room = Room()
    room.harness.held = True
    room.join("a")
    room.join("b")
    room.harness.fail_over(0)
    assert [answer.error_code for answer in room.answers] == [Errors.NOT_COORDINATOR] * 2
    assert room.harness.shard.groups == {}


def test_a_deleted_group_leaves_nothing() -> None:
    room = Room()
    room.join("m", subscribed_topic_names=None, subscribed_topic_regex="t.*")
    assert room.harness.decide(lambda effects: room.harness.shard.delete_group("g", effects)) == Errors.NON_EMPTY_GROUP
    room.beat("m", -1)
    assert room.harness.decide(lambda effects: room.harness.shard.delete_group("g", effects)) == Errors.NONE
    left: dict[bytes, bytes | None] = {}
    for stored in room.harness.log:
        left[stored.key] = stored.value
    assert not any(left.values())


# -- states -----------------------------------------------------------------------------------------------------


def test_a_member_in_an_unknown_state_starts_afresh() -> None:
    state = GroupState("g")
    state.target_epoch = 5
    member = Member("m", epoch=3, state=State.of(9), assigned={TOPIC: {0: 3}})
    wanted = {TOPIC: frozenset({1})}
    for reported in (None, {TOPIC: frozenset({0})}):
        with pytest.raises(KafkaError) as refused:
            reconcile(member, state, wanted, reported)
        assert refused.value.code == Errors.FENCED_MEMBER_EPOCH
    after = reconcile(member, state, wanted, {})
    assert (after.state, after.epoch, after.assigned) == (State.STABLE, 5, {TOPIC: {1: 5}})


def test_partitions_pass_from_one_member_to_the_next_step_by_step() -> None:
    """A has everything and B shall have half: revoke, acknowledge, assign."""
    state = GroupState("g")
    draft = Draft(state)
    a = Member("a", epoch=1, assigned={TOPIC: {0: 1, 1: 1}})
    draft.member(a)
    draft.assignment(a)
    draft.member(Member("b"))
    draft.target(2, 0)
    state = draft.state
    b = reconcile(state.members["b"], state, {TOPIC: frozenset({1})}, {})
    assert (b.state, b.epoch, b.assigned) == (State.UNRELEASED_PARTITIONS, 2, {})
    a = reconcile(state.members["a"], state, {TOPIC: frozenset({0})}, None)
    assert (a.state, a.epoch, a.assigned, a.revoking) == (
        State.UNREVOKED_PARTITIONS, 1, {TOPIC: {0: 1}}, {TOPIC: {1: 1}}
    )  # fmt: skip
    draft.assignment(a)
    draft.assignment(b)
    state = draft.state
    assert reconcile(b, state, {TOPIC: frozenset({1})}, None) == replace(b, previous_epoch=2)
    assert reconcile(a, state, {TOPIC: frozenset({0})}, {TOPIC: frozenset({0, 1})}) == a
    a = reconcile(a, state, {TOPIC: frozenset({0})}, {TOPIC: frozenset({0})})
    assert (a.state, a.epoch, a.revoking) == (State.STABLE, 2, {})
    draft.assignment(a)
    b = reconcile(b, draft.state, {TOPIC: frozenset({1})}, None)
    assert (b.state, b.epoch, b.assigned) == (State.STABLE, 2, {TOPIC: {1: 2}})


def test_claims_in_an_odd_order_end_as_they_must() -> None:
    """A log that is being cleaned: the newer owner's record may come before the older one's last."""
    draft = Draft(GroupState("g"))
    one, two = Member("one", epoch=1, assigned={TOPIC: {0: 1}}), Member("two", epoch=2, assigned={TOPIC: {0: 2}})
    for member in (one, two):
        draft.member(member)
        draft.assignment(member)
    assert draft.state.owners == {(TOPIC, 0): "two"}
    draft.assignment(replace(one, epoch=2, assigned={}))
    assert draft.state.owners == {(TOPIC, 0): "two"}


def test_partition_metadata_of_older_releases_is_passed_over() -> None:
    from pybroker.coordinator import records
    from pybroker.coordinator.records import Record
    from pybroker.protocol.messages.consumer_group_metadata import ConsumerGroupMetadataKey
    from pybroker.protocol.messages.consumer_group_partition_metadata import (
        ConsumerGroupPartitionMetadataKey,
        ConsumerGroupPartitionMetadataValue,
    )

    room = Room()
    for record in (
        Record(ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=7)),
        Record(ConsumerGroupPartitionMetadataKey(group_id="g"), ConsumerGroupPartitionMetadataValue()),
        Record(ConsumerGroupPartitionMetadataKey(group_id="g"), None),
    ):
        key, value = records.encode(record)
        room.harness.shard.replay(records.decode(key, value))
    assert room.group.state.epoch == 7
