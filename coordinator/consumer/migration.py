"""A group changes its protocol while its members live (group.consumer.migration.policy).

Upward: a member of the consumer protocol joins a classic group of consumers. Everyone keeps what the last generation
gave it; the group's epoch is that generation; members are told to rejoin as they would be for any rebalance.
Downward: the last member of the consumer protocol is gone, or replaced by a classic one. Who stays is in a classic
group of the generation that was the epoch, and rejoins, unless the one that came took just the other's place.
An empty group of either kind just makes room.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from pybroker.coordinator.classic import ClassicGroup
from pybroker.coordinator.classic_join import refused
from pybroker.coordinator.classic_members import Member as ClassicMember
from pybroker.coordinator.classic_members import Members
from pybroker.coordinator.classic_table import State as ClassicState
from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.coordinator.consumer.embedded import (
    CONSUMER_PROTOCOL,
    read_assignment,
    read_subscription,
    write_assignment,
)
from pybroker.coordinator.consumer.group import ConsumerGroup, Plan
from pybroker.coordinator.consumer.member import Classic, Member
from pybroker.coordinator.consumer.settings import ConsumerRules
from pybroker.coordinator.consumer.state import Draft, GroupState
from pybroker.coordinator.consumer.topics import topics_hash
from pybroker.coordinator.effects import Effects, TimerKey
from pybroker.coordinator.group import Group
from pybroker.coordinator.records import Record
from pybroker.coordinator.settings import GroupSettings
from pybroker.protocol.clock import Clock
from pybroker.protocol.codec import DecodeError
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from pybroker.protocol.messages.sync_group import SyncGroupResponse

logger = logging.getLogger(__name__)


class Migration:
    """Changes groups of one shard, in its table `groups`."""

    def __init__(
        self, groups: dict[str, Group], rules: ConsumerRules, catalog: TopicCatalog, settings: GroupSettings,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._groups = groups
        self._rules = rules
        self._catalog = catalog
        self._settings = settings
        self._clock = clock

    # -- upward --------------------------------------------------------------------------------------------------

    def may_upgrade(self, group: ClassicGroup) -> bool:
        return (
            self._rules.settings.may_upgrade
            and group.protocol_type == CONSUMER_PROTOCOL
            and group.state is not ClassicState.DEAD
            and len(group.members) <= self._rules.settings.max_size
        )

    def upgrade(self, draft: Draft, group: ClassicGroup) -> None:
        """The classic group's end, and what it is as a consumer group. Raises KafkaError GROUP_ID_NOT_FOUND."""
        draft.records.extend(group.tombstones())
        if group.is_empty:
            return
        logger.info("Group %s changes to the consumer protocol", group.group_id)
        try:
            members = [self._upgraded(group, each) for each in group.members]
        except DecodeError as error:
            raise KafkaError(
                Errors.GROUP_ID_NOT_FOUND,
                f"Cannot upgrade the classic group {group.group_id} to consumer group because the embedded consumer "
                "protocol is malformed.",
            ) from error
        for member in members:
            draft.member(member)
        draft.epoch(group.generation, topics_hash(draft.state.subscribed(), self._catalog))
        for member in members:
            wanted = {topic_id: frozenset(epochs) for topic_id, epochs in member.assigned.items()}
            draft.wanted(member.member_id, wanted)
        draft.target(group.generation, 0)
        for member in members:
            draft.assignment(member)

    def _upgraded(self, group: ClassicGroup, member: ClassicMember) -> Member:
        name = group.protocol if group.protocol is not None else member.protocols[0][0]
        subscription = read_subscription(member.metadata(name))
        assigned = read_assignment(member.assignment, self._catalog)
        return Member(
            member.member_id,
            instance_id=member.instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=tuple(sorted(set(subscription.topics))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=Classic(member.session_timeout_ms, tuple(member.protocols)),
            epoch=group.generation,
            previous_epoch=group.generation,
            assigned={
                topic_id: dict.fromkeys(sorted(partitions), group.generation)
                for topic_id, partitions in assigned.items()
            },
        )

    def upgraded(self, group: ClassicGroup, effects: Effects) -> None:
        """It is written: whoever waits for the classic group's next generation is told to join again."""
        for member in group.members:
            if member.joining is not None:
                effects.answer(member.joining, refused(Errors.REBALANCE_IN_PROGRESS, member.member_id))
            if member.syncing is not None:
                effects.answer(member.syncing, SyncGroupResponse(error_code=Errors.REBALANCE_IN_PROGRESS))
            member.joining = member.syncing = None
        for kind in ("join", "sync"):
            effects.cancel_timer(TimerKey(kind, group.group_id))
        for member_id in group.members.pending:
            effects.cancel_timer(TimerKey("pending", group.group_id, member_id))
        group.removed(effects)

    # -- downward ------------------------------------------------------------------------------------------------

    def should_downgrade(self, before: GroupState, now: GroupState) -> bool:
        """Whether the last member of the consumer protocol has just gone, and classic ones are left."""
        left = len(now.members)
        if not left or now.classic_members() < left or before.classic_members() == len(before.members):
            return False
        return self._rules.settings.may_downgrade and left <= self._settings.max_size

    def plan_removal(self, group: ConsumerGroup, draft: Draft, member_ids: Iterable[str], answer: Any) -> Plan:
        """Members are gone: of the group, which may be a classic one then."""
        before, member_ids = draft.state, list(member_ids)
        rest = Draft(before)
        group.remove(rest, member_ids)
        if not self.should_downgrade(before, rest.state):
            return Plan(rest, answer)
        members = list(rest.state.members.values())
        return self._downgrade(group, draft, members, answer, rebalance=True)

    def plan_replacement(self, group: ConsumerGroup, draft: Draft, answer: Any) -> Plan:
        """A classic member has taken the place of the last one of the consumer protocol."""
        return self._downgrade(group, draft, list(draft.state.members.values()), answer, rebalance=False)

    def _downgrade(
        self, group: ConsumerGroup, draft: Draft, members: list[Member], answer: Any, *, rebalance: bool
    ) -> Plan:
        logger.info("Group %s changes to the classic protocol", group.group_id)
        classic, record = self._classic(group.group_id, draft.state.epoch, members)
        draft.remove_group()
        draft.records.append(record)

        def then(error: Errors, effects: Effects) -> None:
            if error:
                return
            group.removed(effects)
            self._groups[group.group_id] = classic
            classic.loaded(effects)
            if rebalance:
                classic.rebalance("the group has changed to the classic protocol", effects)

        return Plan(draft, answer, then)

    def _classic(self, group_id: str, generation: int, members: list[Member]) -> tuple[ClassicGroup, Record]:
        """A stable classic group of these members, and its record. Raises KafkaError GROUP_ID_NOT_FOUND."""
        known = {each.member_id: each.classic.protocols for each in members if each.classic is not None}
        chooser = Members()
        for each in members:
            chooser.add(_classic_member(each))
        protocol = chooser.select_protocol()
        value = GroupMetadataValue(
            protocol_type=CONSUMER_PROTOCOL,
            generation=generation,
            protocol=protocol,
            leader=members[0].member_id,
            current_state_timestamp=self._clock.now_ms(),
            members=[self._stored(each, protocol) for each in members],
        )
        classic = ClassicGroup.restore(group_id, value, self._settings, self._clock)
        for member in classic.members:
            classic.members.set_protocols(member, known[member.member_id])
        return classic, Record(GroupMetadataKey(group=group_id), value)

    def _stored(self, member: Member, protocol: str) -> MemberMetadata:
        assert member.classic is not None
        subscription = next((metadata for name, metadata in member.classic.protocols if name == protocol), b"")
        return MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.classic.session_timeout_ms,
            subscription=subscription,
            assignment=write_assignment(member.assigned, self._catalog, member.classic.protocols[0][1]),
        )


def _classic_member(member: Member) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member.member_id, member.instance_id, member.client_id, member.client_host, member.classic.session_timeout_ms,
        member.rebalance_timeout_ms, member.classic.protocols,
    )  # fmt: skip
