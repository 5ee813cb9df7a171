"""A group of the classic protocol: members join, one of them divides the partitions, all learn what they got.

The decisions of Kafka 3.9's GroupCoordinator, without its locks and purgatories: every method takes what happened and
fills Effects. Joining is in classic_join. Only assignments, and the end of the last member, are written; what happens
between two of them is lost when the coordinator moves, and members then join anew.

Timers: `session` of a member looks at its deadline when due, and is set again for the rest; a heartbeat moves only the
deadline. `pending`: an id was given out and nobody joined with it. `join` and `sync` end the two phases of a rebalance.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pybroker.coordinator.classic_members import NOT_ARMED, Member, Members
from pybroker.coordinator.classic_table import COMMIT, HEARTBEAT, SYNC, TRANSITIONS, WRITE_FAILED, Event, State
from pybroker.coordinator.effects import Effects, Reply, TimerKey, ignore
from pybroker.coordinator.group import CLASSIC
from pybroker.coordinator.records import Record, group_tombstone
from pybroker.protocol.clock import Clock
from pybroker.protocol.codec import DecodeError, decode
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from pybroker.protocol.messages.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from pybroker.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from pybroker.protocol.messages.leave_group import MemberIdentity, MemberResponse
from pybroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from pybroker.coordinator.settings import GroupSettings

logger = logging.getLogger(__name__)

CONSUMER_PROTOCOL = "consumer"  # the protocol type of consumers
SESSION, PENDING, JOIN, SYNC_PHASE = "session", "pending", "join", "sync"


class ClassicGroup:
    """One group; `state` moves only through TRANSITIONS."""

    __slots__ = (
        "clock", "generation", "group_id", "initial_left_ms", "member_added", "members", "not_synced", "protocol",
        "protocol_type", "settings", "state", "state_since", "subscribed",
    )  # fmt: skip

    type = CLASSIC

    def __init__(self, group_id: str, settings: GroupSettings, clock: Clock) -> None:
        self.group_id = group_id
        self.settings = settings
        self.clock = clock
        self.state = State.EMPTY
        self.state_since: int | None = clock.now_ms()  # None: loaded from a record that doesn't tell
        self.generation = 0
        self.protocol_type: str | None = None  # None until a member joins: offsets only
        self.protocol: str | None = None
        self.members = Members()
        self.subscribed: frozenset[str] | None = None  # topics of all members, None where that can't be known
        self.not_synced: set[str] = set()  # members that have not sent SyncGroup in this generation
        # While the first join phase waits for more members: the time that is left, and whether one came.
        self.initial_left_ms: int | None = None
        self.member_added = False

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    def move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]
        self.state_since = self.clock.now_ms()

    # -- requests ------------------------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> Errors:
        """Is that a member, and, where it says that it is static, the present holder of its instance id?"""
        if instance_id is not None:
            current = self.members.static.get(instance_id)
            if current is None:
                return Errors.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Errors.FENCED_INSTANCE_ID
        return Errors.NONE if member_id in self.members else Errors.UNKNOWN_MEMBER_ID

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, effects: Effects) -> Errors:
        if self.state is State.DEAD:
            return HEARTBEAT[State.DEAD]
        error = self.check_member(member_id, instance_id)
        if error:
            return error
        if generation != self.generation:
            return Errors.ILLEGAL_GENERATION
        self.touch(self.members[member_id], effects)
        return HEARTBEAT[self.state]

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        error = self._check_sync(request)
        if error:
            effects.answer(reply, SyncGroupResponse(error_code=error))
            return
        member = self.members[request.member_id]
        self.not_synced.discard(member.member_id)
        if not self.not_synced:
            effects.cancel_timer(TimerKey(SYNC_PHASE, self.group_id))
        if self.state is State.STABLE:
            self.touch(member, effects)
            effects.answer(reply, self._synced(member))
            return
        if member.syncing is not None:  # an older request of the same member, whose connection is gone
            effects.answer(member.syncing, SyncGroupResponse(error_code=Errors.REBALANCE_IN_PROGRESS))
        member.syncing = reply
        if member.member_id == self.members.leader_id:
            given = {each.member_id: each.assignment for each in request.assignments}
            assignment = {each.member_id: given.get(each.member_id, b"") for each in self.members}
            effects.write([self.record(assignment)], partial(self._assigned, self.generation, assignment))

    def _check_sync(self, request: SyncGroupRequest) -> Errors:
        if self.state is State.DEAD:
            return SYNC[State.DEAD]
        error = self.check_member(request.member_id, request.group_instance_id)
        if error:
            return error
        if request.generation_id != self.generation:
            return Errors.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return Errors.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != self.protocol:
            return Errors.INCONSISTENT_GROUP_PROTOCOL
        return SYNC[self.state]

    def _assigned(self, generation: int, assignment: Mapping[str, bytes], error: Errors, effects: Effects) -> None:
        """The leader's assignment is in the log, or could not be written. Meanwhile a rebalance may have begun."""
        if self.state is not State.COMPLETING or generation != self.generation:
            return
        if error:
            self._fail_syncs(WRITE_FAILED.get(error, error), effects)
            self.rebalance("the assignment could not be written", effects)
            return
        self.move(Event.ASSIGNED)
        for member in self.members:
            member.assignment = assignment[member.member_id]
            if member.syncing is not None:
                effects.answer(member.syncing, self._synced(member))
                member.syncing = None
                self.touch(member, effects)

    def _synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    def leave(self, leaving: MemberIdentity, effects: Effects) -> MemberResponse:
        """One member wants out, or is taken out by its instance id (without a member id)."""
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        error = Errors.NONE
        if not member_id:
            member_id = self.members.static.get(instance_id, "") if instance_id is not None else ""
            error = Errors.NONE if member_id else Errors.UNKNOWN_MEMBER_ID
        elif member_id in self.members.pending:
            self._drop_pending(member_id, effects)
            return MemberResponse(member_id=member_id, group_instance_id=instance_id)
        else:
            error = self.check_member(member_id, instance_id)
        if not error:
            logger.info("Group %s: member %s leaves (%s)", self.group_id, member_id, leaving.reason or "no reason")
            self.take_out(self.members[member_id], "a member left", effects)
        return MemberResponse(
            member_id=leaving.member_id, group_instance_id=leaving.group_instance_id, error_code=error
        )

    # -- sessions ------------------------------------------------------------------------------------------------

    def touch(self, member: Member, effects: Effects, timeout_ms: int | None = None) -> None:
        """The member is alive: it has its session timeout (or `timeout_ms`) until it must be heard of again."""
        deadline = self.clock.monotonic_ms() + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        member.deadline = deadline
        if deadline < member.armed_at:
            member.armed_at = deadline
            effects.set_timer(TimerKey(SESSION, self.group_id, member.member_id), deadline)

    def timer(self, key: TimerKey, effects: Effects) -> None:
        if key.kind == SESSION:
            self._session_due(key.member_id, effects)
        elif key.kind == PENDING:
            if key.member_id in self.members.pending:
                self._drop_pending(key.member_id, effects)
        elif key.kind == JOIN:
            if self.state is State.PREPARING:
                self._join_time_up(effects)
        elif key.kind == SYNC_PHASE:
            self._sync_time_up(effects)

    def _session_due(self, member_id: str, effects: Effects) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        member.armed_at = NOT_ARMED
        if not member.is_new and (member.joining is not None or member.syncing is not None):
            return  # it waits for the group, and has its time again when it is answered
        if member.deadline > self.clock.monotonic_ms():
            member.armed_at = member.deadline
            effects.set_timer(TimerKey(SESSION, self.group_id, member_id), member.deadline)
            return
        logger.info("Group %s: member %s was not heard of in time and is taken out", self.group_id, member_id)
        self.take_out(member, "a member was not heard of in time", effects)

    def _drop_pending(self, member_id: str, effects: Effects) -> None:
        self.members.pending.discard(member_id)
        effects.cancel_timer(TimerKey(PENDING, self.group_id, member_id))
        self.try_complete_join(effects)

    def take_out(self, member: Member, reason: str, effects: Effects) -> None:
        """A member is gone; those who stay divide its partitions."""
        self._remove(member, effects)
        if self.state is State.PREPARING:
            self.try_complete_join(effects)
        else:
            self.rebalance(reason, effects)

    def _remove(self, member: Member, effects: Effects) -> None:
        if member.joining is not None:
            effects.answer(member.joining, JoinGroupResponse(error_code=Errors.UNKNOWN_MEMBER_ID))
            member.joining = None
        if member.syncing is not None:
            effects.answer(member.syncing, SyncGroupResponse(error_code=Errors.UNKNOWN_MEMBER_ID))
            member.syncing = None
        self.members.remove(member)
        self.not_synced.discard(member.member_id)
        effects.cancel_timer(TimerKey(SESSION, self.group_id, member.member_id))

    # -- rebalancing ---------------------------------------------------------------------------------------------

    def rebalance(self, reason: str, effects: Effects) -> None:
        """Have everybody join again, unless that is under way. `reason` is for the log."""
        if (self.state, Event.REBALANCE) not in TRANSITIONS:
            return
        first = self.state is State.EMPTY
        if self.state is State.COMPLETING:
            self._fail_syncs(Errors.REBALANCE_IN_PROGRESS, effects)
        effects.cancel_timer(TimerKey(SYNC_PHASE, self.group_id))
        self.not_synced.clear()
        logger.info("Group %s (generation %d) rebalances: %s", self.group_id, self.generation, reason)
        self.move(Event.REBALANCE)
        timeout = self.members.rebalance_timeout_ms()
        self.initial_left_ms = None
        if first:
            delay = self.settings.initial_rebalance_delay_ms
            self.member_added = False
            self.initial_left_ms = max(timeout - delay, 0)
            timeout = delay
            if delay <= 0:
                self._complete_join(effects)
                return
        self._set(JOIN, timeout, effects)
        self.try_complete_join(effects)

    def _set(self, kind: str, delay_ms: int, effects: Effects) -> None:
        effects.set_timer(TimerKey(kind, self.group_id), self.clock.monotonic_ms() + max(delay_ms, 0))

    def try_complete_join(self, effects: Effects) -> None:
        """End the join phase if nobody is missing; the first one of a group always takes its time."""
        if self.state is State.PREPARING and self.initial_left_ms is None and self.members.all_joined():
            self._complete_join(effects)

    def _join_time_up(self, effects: Effects) -> None:
        left = self.initial_left_ms
        if left and self.member_added:  # more may be coming: once more the delay, within the rebalance timeout
            self.member_added = False
            delay = min(self.settings.initial_rebalance_delay_ms, left)
            self.initial_left_ms = max(left - delay, 0)
            self._set(JOIN, delay, effects)
            return
        self._complete_join(effects)

    def _complete_join(self, effects: Effects) -> None:
        """The join phase is over. Dynamic members that did not come are out; static ones keep their place."""
        self.initial_left_ms = None
        for member in [each for each in self.members if each.joining is None and each.instance_id is None]:
            logger.info("Group %s: member %s did not join in time and is taken out", self.group_id, member.member_id)
            self._remove(member, effects)
        if len(self.members) and not self.members.elect_joined_leader():
            self._set(JOIN, self.members.rebalance_timeout_ms(), effects)  # only absent static members: wait on
            return
        effects.cancel_timer(TimerKey(JOIN, self.group_id))
        self.generation += 1
        self.not_synced.clear()
        if not len(self.members):
            self.protocol = None
            self.subscribed = self._subscribed_topics()
            self.move(Event.ALL_GONE)
            effects.write([self.record({})], ignore)
            return
        self.protocol = self.members.select_protocol()
        self.subscribed = self._subscribed_topics()
        self.move(Event.JOINED)
        for member in self.members:
            if member.joining is not None:
                effects.answer(member.joining, self.joined(member))
                member.joining = None
            member.is_new = False
            self.touch(member, effects)
            self.not_synced.add(member.member_id)
        self._set(SYNC_PHASE, self.members.rebalance_timeout_ms(), effects)

    def joined(self, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """What a member learns at the end of the join phase; the leader also who the members are."""
        leads = member.member_id == self.members.leader_id
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.members.leader_id or "",
            skip_assignment=skip_assignment and leads,
            member_id=member.member_id,
            members=self._member_list() if leads else [],
        )

    def _member_list(self) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata(self.protocol)
            )
            for each in self.members
        ]

    def _sync_time_up(self, effects: Effects) -> None:
        """Members that joined and never asked for their assignment are out."""
        if self.state not in (State.COMPLETING, State.STABLE) or not self.not_synced:
            return
        for member_id in list(self.not_synced):
            member = self.members.get(member_id)
            if member is not None:
                logger.info("Group %s: member %s sent no SyncGroup and is taken out", self.group_id, member_id)
                self._remove(member, effects)
        self.rebalance("members did not ask for their assignment", effects)

    def _fail_syncs(self, error: Errors, effects: Effects) -> None:
        for member in self.members:
            member.assignment = b""
            if member.syncing is not None:
                effects.answer(member.syncing, SyncGroupResponse(error_code=error))
                member.syncing = None
                self.touch(member, effects)

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        topics: set[str] = set()
        for member in self.members:
            found = subscription_topics(member.metadata(self.protocol))
            if found is None:
                return None
            topics.update(found)
        return frozenset(topics)

    # -- offsets -------------------------------------------------------------------------------------------------

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, transactional: bool) -> Errors:
        if self.state is State.DEAD:
            return COMMIT[State.DEAD]
        if generation < 0 and self.state is State.EMPTY:
            return Errors.NONE  # offsets without group management
        if generation >= 0 or member_id or instance_id is not None:
            error = self.check_member(member_id, instance_id)
            if error:
                return error
            return Errors.ILLEGAL_GENERATION if generation != self.generation else COMMIT[self.state]
        return COMMIT[self.state] if transactional else Errors.UNKNOWN_MEMBER_ID

    def committed_by(self, member_id: str, effects: Effects) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self.touch(member, effects)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> Errors:
        return Errors.NONE

    def check_delete_offsets(self) -> Errors:
        if self.state is State.DEAD:
            return Errors.GROUP_ID_NOT_FOUND
        if self.state is State.EMPTY or self.protocol_type == CONSUMER_PROTOCOL:
            return Errors.NONE
        return Errors.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        return self.state is not State.EMPTY and (self.subscribed is None or topic in self.subscribed)

    def offsets_expire_from(self, committed_at: int) -> int | None:
        if self.protocol_type is None:
            return committed_at
        if self.state is State.EMPTY:
            return committed_at if self.state_since is None else self.state_since
        if self.protocol_type == CONSUMER_PROTOCOL and self.state is State.STABLE and self.subscribed is not None:
            return committed_at
        return None

    # -- life in the log -----------------------------------------------------------------------------------------

    def record(self, assignment: Mapping[str, bytes]) -> Record:
        """The group as it is written, with these assignments by member id."""
        return Record(
            GroupMetadataKey(group=self.group_id),
            GroupMetadataValue(
                protocol_type=self.protocol_type or "",
                generation=self.generation,
                protocol=self.protocol,
                leader=self.members.leader_id,
                current_state_timestamp=-1 if self.state_since is None else self.state_since,
                members=[_stored(each, self.protocol, assignment[each.member_id]) for each in self.members],
            ),
        )

    @classmethod
    def restore(cls, group_id: str, value: GroupMetadataValue, settings: GroupSettings, clock: Clock) -> ClassicGroup:
        """The group as its record says: with members it is stable, and they go on where they were."""
        group = cls(group_id, settings, clock)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        for stored in value.members:
            member = Member(
                stored.member_id, stored.group_instance_id, stored.client_id, stored.client_host,
                stored.session_timeout,
                stored.session_timeout if stored.rebalance_timeout < 0 else stored.rebalance_timeout,
                [(value.protocol or "", stored.subscription)], stored.assignment,
            )  # fmt: skip
            group.members.add(member)
        if value.leader is not None and value.leader in group.members:
            group.members.leader_id = value.leader
        group.state = State.STABLE if len(group.members) else State.EMPTY
        group.state_since = None if value.current_state_timestamp < 0 else value.current_state_timestamp
        group.subscribed = group._subscribed_topics()
        return group

    def tombstones(self) -> list[Record]:
        """None for a group that only keeps offsets: it was never written."""
        return [group_tombstone(self.group_id)] if self.generation > 0 else []

    def removed(self, effects: Effects) -> None:
        self.move(Event.REMOVED)

    def loaded(self, effects: Effects) -> None:
        for member in self.members:
            self.touch(member, effects)
        if len(self.members) > self.settings.max_size:
            self.rebalance("it has more members than group.max.size", effects)

    def unloaded(self, effects: Effects) -> None:
        for member in self.members:
            if member.joining is not None:
                response = JoinGroupResponse(error_code=Errors.NOT_COORDINATOR, member_id=member.member_id)
                effects.answer(member.joining, response)
            if member.syncing is not None:
                effects.answer(member.syncing, SyncGroupResponse(error_code=Errors.NOT_COORDINATOR))
            member.joining = member.syncing = None
        self.move(Event.REMOVED)


def _stored(member: Member, protocol: str | None, assignment: bytes) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def subscription_topics(metadata: bytes) -> list[str] | None:
    """The topics of a consumer's subscription; None where it is something else."""
    if len(metadata) < 2:
        return None
    version = int.from_bytes(metadata[:2], "big", signed=True)
    if version < 0:
        return None
    try:
        found = decode(ConsumerProtocolSubscription, min(version, 3), metadata, 2)[0]
    except DecodeError:
        return None
    return found.topics
