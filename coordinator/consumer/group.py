"""A consumer group among the groups of a coordinator: its requests one after the other, its timers, its writes.

A decision that writes has to be committed before the next one of the group is made: what comes meanwhile waits in line.
A heartbeat that changes nothing writes nothing and touches one timer, which it does not even move: `session` looks at
the deadline when it is due, and is set again for the rest.

timer     | of a member | when it is due
--------- | ----------- | ------------------------------------------------------------------------------
session   | every       | the member has been silent for its session timeout: it is out
rebalance | consumer    | it has not given up its partitions within its rebalance timeout: it is out
join      | classic     | it was told to rejoin and did not within its rebalance timeout: it is out
sync      | classic     | it joined and did not ask for its assignment: it is out
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pybroker.coordinator.classic_table import WRITE_FAILED
from pybroker.coordinator.consumer import checks
from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.coordinator.consumer.departure import remove
from pybroker.coordinator.consumer.heartbeat import Surroundings
from pybroker.coordinator.consumer.member import Member, State
from pybroker.coordinator.consumer.settings import ConsumerRules
from pybroker.coordinator.consumer.state import Draft, GroupState
from pybroker.coordinator.effects import Effects, TimerKey
from pybroker.coordinator.group import CONSUMER
from pybroker.coordinator.records import Record
from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError

logger = logging.getLogger(__name__)

SESSION, REBALANCE, JOIN, SYNC = "session", "rebalance", "join", "sync"
_TIMERS = (SESSION, REBALANCE, JOIN, SYNC)
# What was appended is not taken back: where its replicas are only late, the group has changed all the same. Whoever
# asked is told to try again.
IN_THE_LOG = (Errors.NONE, Errors.REQUEST_TIMED_OUT, Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
_WRITE_FAILED = WRITE_FAILED | {Errors.REQUEST_TIMED_OUT: Errors.COORDINATOR_NOT_AVAILABLE}
COMMITS_SINCE = 9  # version of OffsetCommit from which members of the consumer protocol may use it

EMPTY, ASSIGNING, RECONCILING, STABLE, DEAD = "Empty", "Assigning", "Reconciling", "Stable", "Dead"


class Plan:
    """What a decision comes to: its draft, the answer for when that is written, and what else follows then.

    `then` is called with (error, effects), before the answer is given.
    """

    __slots__ = ("answer", "draft", "then")

    def __init__(self, draft: Draft, answer: Any, then: Callable[[Errors, Effects], None] | None = None) -> None:
        self.draft = draft
        self.answer = answer
        self.then = then


Decide = Callable[[Draft, Effects], Plan]
Answer = Callable[[Any, Errors, str | None, Effects], None]  # (what was decided, error, its message, effects)


class Home(Protocol):
    """What becomes of a group that has lost members: see migration."""

    def plan_removal(self, group: ConsumerGroup, draft: Draft, member_ids: Iterable[str], answer: Any) -> Plan: ...


class _Session:
    __slots__ = ("armed_at", "deadline")

    def __init__(self, deadline: int) -> None:
        self.deadline = deadline
        self.armed_at = deadline


class ConsumerGroup:
    """See the module's text. `state` is what is committed."""

    __slots__ = (
        "_joins", "_line", "_rebalances", "_seen_version", "_sessions", "_writing", "catalog", "clock", "gone",
        "group_id", "home", "rules", "state",
    )  # fmt: skip

    type = CONSUMER
    protocol_type: str | None = "consumer"

    def __init__(self, group_id: str, rules: ConsumerRules, catalog: TopicCatalog, clock: Clock, home: Home) -> None:
        self.group_id = group_id
        self.rules = rules
        self.catalog = catalog
        self.clock = clock
        self.home = home
        self.state = GroupState(group_id)
        self.gone = False  # deleted, unloaded, or a classic group by now
        self._writing = False
        self._line: deque[tuple[Decide, Answer]] = deque()
        self._seen_version = -1  # of the catalog, by the last decision about the group's topics
        self._sessions: dict[str, _Session] = {}
        self._rebalances: dict[str, int] = {}  # member → the epoch that it must leave in time
        self._joins: set[str] = set()  # classic members that were told to rejoin

    # -- deciding ------------------------------------------------------------------------------------------------

    def submit(self, decide: Decide, answer: Answer, effects: Effects) -> None:
        """Decide now, or when what was decided before is written. `answer` is called exactly once."""
        if self._writing:
            self._line.append((decide, answer))
        else:
            self._decide(decide, answer, effects)

    def _decide(self, decide: Decide, answer: Answer, effects: Effects) -> None:
        if self.gone:
            answer(None, Errors.NOT_COORDINATOR, None, effects)
            return
        try:
            plan = decide(Draft(self.state), effects)
        except KafkaError as error:
            answer(None, error.code, error.message, effects)
            return
        if not plan.draft.records:
            self._done(plan, answer, Errors.NONE, effects)
            return
        self._writing = True

        def written(error: Errors, effects: Effects) -> None:
            self._writing = False
            self._done(plan, answer, error, effects)
            if error == Errors.NOT_LEADER_OR_FOLLOWER:
                return  # `unloaded` follows, and sends those away who wait
            while self._line and not self._writing:
                self._decide(*self._line.popleft(), effects)

        effects.write(plan.draft.records, written)

    def _done(self, plan: Plan, answer: Answer, error: Errors, effects: Effects) -> None:
        if plan.draft.records and error in IN_THE_LOG:
            before, self.state = self.state, plan.draft.state
            self._set_timers(before, effects)
        if error:
            logger.warning("Group %s: a change could not be written: %s", self.group_id, error.name)
            self._seen_version = -1
            answer(None, _WRITE_FAILED.get(error, error), None, effects)
        else:
            answer(plan.answer, Errors.NONE, None, effects)
        if plan.then is not None:
            plan.then(Errors.NONE if error in IN_THE_LOG else error, effects)

    def around(self) -> Surroundings:
        """For a decision about the group's topics."""
        version = self.catalog.version
        moved = version != self._seen_version
        self._seen_version = version
        return Surroundings(self.rules, self.catalog, self.clock.now_ms(), moved)

    # -- timers --------------------------------------------------------------------------------------------------

    def touch(self, member_id: str, effects: Effects) -> None:
        """The member is alive: it has its session timeout until it must be heard of again."""
        member = self.state.members.get(member_id)
        if member is None:
            return
        classic = member.classic
        timeout = self.rules.session_timeout_ms(self.group_id) if classic is None else classic.session_timeout_ms
        deadline = self.clock.monotonic_ms() + timeout
        session = self._sessions.get(member_id)
        if session is None:
            session = self._sessions[member_id] = _Session(deadline)
        else:
            session.deadline = deadline
            if session.armed_at <= deadline:
                return
            session.armed_at = deadline
        effects.set_timer(TimerKey(SESSION, self.group_id, member_id), deadline)

    def _set_timers(self, before: GroupState, effects: Effects) -> None:
        """After a change: sessions of those who came, nothing of those who went, and time to give up partitions."""
        members = self.state.members
        for member_id in before.members:
            if member_id not in members:
                self._forget(member_id, effects)
        for member_id, member in members.items():
            if before.members.get(member_id) is not member:
                if member_id not in self._sessions:
                    self.touch(member_id, effects)
                self._time_revocation(member, effects)

    def _time_revocation(self, member: Member, effects: Effects) -> None:
        key = TimerKey(REBALANCE, self.group_id, member.member_id)
        if member.state is State.UNREVOKED_PARTITIONS and member.classic is None:
            self._rebalances[member.member_id] = member.epoch
            effects.set_timer(key, self.clock.monotonic_ms() + max(member.rebalance_timeout_ms, 0))
        elif self._rebalances.pop(member.member_id, None) is not None:
            effects.cancel_timer(key)

    def _forget(self, member_id: str, effects: Effects) -> None:
        self._sessions.pop(member_id, None)
        self._rebalances.pop(member_id, None)
        self._joins.discard(member_id)
        for kind in _TIMERS:
            effects.cancel_timer(TimerKey(kind, self.group_id, member_id))

    def expect_join(self, member: Member, effects: Effects) -> None:
        """A classic member was told to rejoin; saying it again gives no more time."""
        if member.member_id not in self._joins:
            self._joins.add(member.member_id)
            due = self.clock.monotonic_ms() + max(member.rebalance_timeout_ms, 0)
            effects.set_timer(TimerKey(JOIN, self.group_id, member.member_id), due)

    def joined(self, member_id: str, effects: Effects) -> None:
        """A classic member has joined: it must ask for its assignment now."""
        member = self.state.members.get(member_id)
        if member is None:
            return
        self._joins.discard(member_id)
        effects.cancel_timer(TimerKey(JOIN, self.group_id, member_id))
        self.touch(member_id, effects)
        due = self.clock.monotonic_ms() + max(member.rebalance_timeout_ms, 0)
        effects.set_timer(TimerKey(SYNC, self.group_id, member_id), due)

    def synced(self, member_id: str, effects: Effects) -> None:
        effects.cancel_timer(TimerKey(SYNC, self.group_id, member_id))
        self.touch(member_id, effects)

    def timer(self, key: TimerKey, effects: Effects) -> None:
        member_id = key.member_id
        if key.kind == SESSION:
            session = self._sessions.get(member_id)
            if session is None:
                return
            if session.deadline > self.clock.monotonic_ms():
                session.armed_at = session.deadline
                effects.set_timer(key, session.deadline)
                return
            session.armed_at = 1 << 62
        elif key.kind == JOIN and member_id not in self._joins:
            return
        self._fence(member_id, key.kind, effects)

    def _fence(self, member_id: str, why: str, effects: Effects) -> None:
        def decide(draft: Draft, effects: Effects) -> Plan:
            member = checks.known_member(draft.state, member_id)
            if why == REBALANCE and (
                member.state is not State.UNREVOKED_PARTITIONS or self._rebalances.get(member_id) != member.epoch
            ):
                return Plan(draft, None)
            logger.info("Group %s: member %s is taken out: its %s timeout is over", self.group_id, member_id, why)
            return self.home.plan_removal(self, draft, [member_id], None)

        def answer(_: Any, error: Errors, message: str | None, effects: Effects) -> None:
            if error and error != Errors.UNKNOWN_MEMBER_ID and not self.gone:
                due = self.clock.monotonic_ms() + 1000  # it could not be written: once more
                effects.set_timer(TimerKey(why, self.group_id, member_id), due)

        self.submit(decide, answer, effects)

    def remove(self, draft: Draft, member_ids: Iterable[str]) -> None:
        remove(draft, member_ids, self.catalog)

    # -- as any group --------------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        state = self.state
        if self.gone:
            return DEAD
        if not state.members:
            return EMPTY
        if state.epoch > state.target_epoch:
            return ASSIGNING
        return STABLE if all(each.is_at(state.target_epoch) for each in state.members.values()) else RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.state.members and not self._writing

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, transactional: bool,
        version: int = COMMITS_SINCE,
    ) -> Errors:  # fmt: skip
        if generation < 0 and not self.state.members:
            return Errors.NONE
        if transactional and generation < 0 and not member_id and instance_id is None:
            return Errors.NONE
        member = self.state.members.get(member_id)
        if member is None:
            return Errors.UNKNOWN_MEMBER_ID
        if member.classic is not None:
            return Errors.NONE if generation == member.epoch else Errors.ILLEGAL_GENERATION
        if not transactional and version < COMMITS_SINCE:
            return Errors.UNSUPPORTED_VERSION
        return Errors.NONE if generation == member.epoch else Errors.STALE_MEMBER_EPOCH

    def check_late_commit(self, member_id: str, epoch: int, topic: str, partition: int) -> Errors:
        """A commit with an epoch of the past counts while the partition has been the member's since then (KIP-1251)."""
        member = self.state.members.get(member_id)
        found = self.catalog.topic(topic)
        if member is None or member.classic is not None or found is None or not 0 <= epoch < member.epoch:
            return Errors.STALE_MEMBER_EPOCH
        for owned in (member.assigned, member.revoking):
            since = owned.get(found.topic_id, {}).get(partition)
            if since is not None and since <= epoch:
                return Errors.NONE
        return Errors.STALE_MEMBER_EPOCH

    def committed_by(self, member_id: str, effects: Effects) -> None:
        """Offsets prolong no session in this protocol."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> Errors:
        if member_id is None and member_epoch < 0:
            return Errors.NONE
        member = self.state.members.get(member_id or "")
        if member is None:
            return Errors.UNKNOWN_MEMBER_ID
        if member.epoch == member_epoch:
            return Errors.NONE
        return Errors.STALE_MEMBER_EPOCH if member.classic is None else Errors.ILLEGAL_GENERATION

    def check_delete_offsets(self) -> Errors:
        return Errors.NONE

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.state.subscribed()

    def offsets_expire_from(self, committed_at: int) -> int | None:
        return committed_at

    def tombstones(self) -> list[Record]:
        if self.state.is_pristine:
            return []
        draft = Draft(self.state)
        draft.remove_group()
        return draft.records

    def removed(self, effects: Effects) -> None:
        self.gone = True

    def loaded(self, effects: Effects) -> None:
        for member in self.state.members.values():
            self.touch(member.member_id, effects)
            self._time_revocation(member, effects)

    def unloaded(self, effects: Effects) -> None:
        self.gone = True
        while self._line:
            _, answer = self._line.popleft()
            answer(None, Errors.NOT_COORDINATOR, None, effects)
