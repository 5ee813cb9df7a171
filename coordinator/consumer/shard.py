"""The consumer groups of one partition of __consumer_offsets, in the same table as the classic ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pybroker.coordinator.classic import ClassicGroup
from pybroker.coordinator.classic_join import Join
from pybroker.coordinator.consumer import checks, classic
from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.coordinator.consumer.departure import leave_for_a_while, leaving_member
from pybroker.coordinator.consumer.describe import describe
from pybroker.coordinator.consumer.group import ConsumerGroup, Plan
from pybroker.coordinator.consumer.heartbeat import Beat, heartbeat
from pybroker.coordinator.consumer.member import JOINING, LEAVING_FOR_A_WHILE
from pybroker.coordinator.consumer.migration import Migration
from pybroker.coordinator.consumer.settings import ConsumerRules
from pybroker.coordinator.consumer.state import Draft
from pybroker.coordinator.effects import Effects, Reply, ignore
from pybroker.coordinator.group import Group
from pybroker.coordinator.records import Record
from pybroker.coordinator.settings import GroupSettings
from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.consumer_group_describe import DescribedGroup
from pybroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from pybroker.protocol.messages.consumer_group_metadata import ConsumerGroupMetadataKey
from pybroker.protocol.messages.leave_group import MemberIdentity, MemberResponse
from pybroker.protocol.messages.sync_group import SyncGroupRequest
from pybroker.protocol.uuids import random_uuid, uuid_to_text


class ConsumerGroups:
    """`groups` is the shard's own table; groups of both kinds change places in it."""

    def __init__(
        self, groups: dict[str, Group], rules: ConsumerRules, catalog: TopicCatalog, settings: GroupSettings,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._groups = groups
        self._rules = rules
        self._catalog = catalog
        self._clock = clock
        self.migration = Migration(groups, rules, catalog, settings, clock)

    def _new(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self._rules, self._catalog, self._clock, self.migration)

    # -- the log -------------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """A record of one of the kinds in KEYS."""
        key, value = record
        group = self._groups.get(key.group_id)
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            if isinstance(group, ConsumerGroup):
                del self._groups[key.group_id]
            return
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self._groups[key.group_id] = self._new(key.group_id)
        group.state.apply(record)

    # -- heartbeats ----------------------------------------------------------------------------------------------

    def heartbeat(self, beat: Beat, reply: Reply, effects: Effects) -> None:
        """Answers a ConsumerGroupHeartbeatResponse."""

        def answer(response: Any, error: Errors, message: str | None, effects: Effects) -> None:
            if error:
                response = ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)
            effects.answer(reply, response)

        request = beat.request
        try:
            checks.check_request(request, beat.version, self._rules.assignors)
            if not request.member_id:  # version 0: ids are given out
                request.member_id = uuid_to_text(random_uuid())
            group = self._groups.get(request.group_id)
            if request.member_epoch == JOINING and not isinstance(group, ConsumerGroup):
                self._found(beat, group, answer, effects)
                return
            leaving = checks.is_leaving(request.member_epoch)
            known = self._known(request.group_id, "Group" if leaving else "Consumer group")
        except KafkaError as error:
            answer(None, error.code, error.message, effects)
            return
        decide = self._leave if leaving else self._stay
        known.submit(lambda draft, effects: decide(known, draft, beat), answer, effects)

    def _known(self, group_id: str, what: str = "Group") -> ConsumerGroup:
        """Raises KafkaError GROUP_ID_NOT_FOUND; `what` is what Kafka calls a group that isn't there."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        said = f"{what} {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        raise KafkaError(Errors.GROUP_ID_NOT_FOUND, said)

    def _stay(self, group: ConsumerGroup, draft: Draft, beat: Beat) -> Plan:
        response = heartbeat(draft, beat, group.around())
        return Plan(draft, response, lambda _, effects: group.touch(beat.request.member_id, effects))

    def _leave(self, group: ConsumerGroup, draft: Draft, beat: Beat) -> Plan:
        request = beat.request
        member_id = leaving_member(draft.state, request)
        response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        if request.member_epoch == LEAVING_FOR_A_WHILE:
            leave_for_a_while(draft, member_id)
            return Plan(draft, response)
        return self.migration.plan_removal(group, draft, [member_id], response)

    def _found(self, beat: Beat, old: Group | None, answer: Any, effects: Effects) -> None:
        """A member joins a group that is none yet, or a classic one. Raises KafkaError."""
        group_id = beat.request.group_id
        former = old if isinstance(old, ClassicGroup) else None
        if former is not None and not former.is_empty and not self.migration.may_upgrade(former):
            raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        group = self._new(group_id)

        def decide(draft: Draft, effects: Effects) -> Plan:
            if former is not None:
                self.migration.upgrade(draft, former)
            response = heartbeat(draft, beat, group.around())
            self._groups[group_id] = group  # from now on requests wait in its line
            return Plan(draft, response, then)

        def then(error: Errors, effects: Effects) -> None:
            if not error:
                if former is not None:
                    self.migration.upgraded(former, effects)
                group.touch(beat.request.member_id, effects)
                return
            group.unloaded(effects)
            if former is not None:
                self._groups[group_id] = former
                former.loaded(effects)
            elif self._groups.get(group_id) is group:
                del self._groups[group_id]

        group.submit(decide, answer, effects)

    # -- members of the classic protocol -------------------------------------------------------------------------

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def join(self, asked: Join, effects: Effects) -> bool:
        """JoinGroup. False where the group has no members and so has made room for a classic one."""
        group = self._group(asked.request.group_id)
        if group.is_empty:
            group.removed(effects)
            del self._groups[group.group_id]
            tombstones = group.tombstones()
            if tombstones:
                effects.write(tombstones, ignore)
            return False
        classic.join(group, asked, self.migration, effects)
        return True

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        classic.sync(self._group(request.group_id), request, reply, effects)

    def classic_heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, effects: Effects
    ) -> Errors:
        return classic.heartbeat(self._group(group_id), member_id, instance_id, generation, effects)

    def leave(self, group_id: str, leaving: Sequence[MemberIdentity], effects: Effects) -> list[MemberResponse]:
        return classic.leave(self._group(group_id), leaving, self.migration, effects)

    # -- offsets -------------------------------------------------------------------------------------------------

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, epoch: int, places: Sequence[tuple[str, int]],
        version: int, transactional: bool,
    ) -> list[Errors]:  # fmt: skip
        """An error for each place: a member that is behind may still commit for what it has had all along."""
        group = self._group(group_id)
        error = group.check_commit(member_id, instance_id, epoch, transactional, version)
        if error != Errors.STALE_MEMBER_EPOCH:
            return [error] * len(places)
        return [group.check_late_commit(member_id, epoch, topic, partition) for topic, partition in places]

    # -- describing ----------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        try:
            return describe(self._known(group_id))
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
