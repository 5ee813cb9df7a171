"""The groups of one partition of __consumer_offsets: replaying its records, and deciding what is asked of a group.

Everything a coordinator knows is here, and nothing of it does I/O: decisions fill Effects, `replay` takes what the log
holds. A group that only keeps offsets is a classic group without members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from pybroker.coordinator.classic import ClassicGroup
from pybroker.coordinator.classic_join import Join, join, refused
from pybroker.coordinator.classic_members import Member
from pybroker.coordinator.classic_table import State
from pybroker.coordinator.effects import Effects, Reply, TimerKey, ignore
from pybroker.coordinator.group import CONSUMER, Group
from pybroker.coordinator.offsets import WRITE_FAILED, CommittedOffset, GroupOffsets, Place
from pybroker.coordinator.records import Record, offset_key
from pybroker.coordinator.settings import GroupSettings
from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from pybroker.protocol.messages.group_metadata import GroupMetadataKey
from pybroker.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from pybroker.protocol.messages.offset_commit import OffsetCommitKey
from pybroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from pybroker.coordinator.consumer.shard import ConsumerGroups

logger = logging.getLogger(__name__)

GROUP_NOT_FOUND_SINCE = 9  # version of OffsetCommit


class Committer(NamedTuple):
    """Who commits offsets; `generation` is -1 without group management, the member epoch in KIP-848."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class OffsetState(NamedTuple):
    """What a fetch is told of one partition; `offset` is None where nothing is committed."""

    offset: CommittedOffset | None
    error: Errors


class GroupShard:
    """See the module's text. `new_consumer` makes what serves groups of the consumer protocol, where that is on: it is
    called with the first such group."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        new_id: Callable[[], object] = uuid4,
        new_consumer: Callable[[dict[str, Group]], ConsumerGroups] | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self._new_id = new_id
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self._new_consumer = new_consumer
        self._consumer: ConsumerGroups | None = None

    @property
    def consumer(self) -> ConsumerGroups | None:
        """The groups of the consumer protocol; None where it is not served."""
        if self._consumer is None and self._new_consumer is not None:
            self._consumer = self._new_consumer(self.groups)
        return self._consumer

    # -- the log -------------------------------------------------------------------------------------------------

    def replay(self, record: Record, producer_id: int | None = None) -> None:
        """One record of the log, in its order; with the producer id of the transaction that it belongs to."""
        key, value = record
        if isinstance(key, OffsetCommitKey):
            offsets = self._offsets(key.group)
            if value is None:
                offsets.remove((key.topic, key.partition))
            else:
                offsets.set((key.topic, key.partition), CommittedOffset.of(value), producer_id)
        elif isinstance(key, GroupMetadataKey):
            if value is not None:
                self.groups[key.group] = ClassicGroup.restore(key.group, value, self.settings, self.clock)
            elif self._classic(key.group) is not None:
                del self.groups[key.group]
        elif self.consumer is not None:
            self.consumer.replay(record)

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """A transaction's marker is in the log."""
        for group_id, offsets in self.offsets.items():
            offsets.end_transaction(producer_id, commit)
            if offsets and group_id not in self.groups:  # deleted meanwhile, and offsets of it came through
                self.groups[group_id] = ClassicGroup(group_id, self.settings, self.clock)

    def loaded(self, effects: Effects) -> None:
        """All records have been replayed: members have to report from now on."""
        for group_id in [group_id for group_id, offsets in self.offsets.items() if not offsets]:
            del self.offsets[group_id]
        for group_id in self.offsets:
            if group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id, self.settings, self.clock)
        for group in list(self.groups.values()):
            group.loaded(effects)

    def unloaded(self, effects: Effects) -> None:
        """Another broker coordinates these groups now."""
        for group in self.groups.values():
            group.unloaded(effects)

    def timer(self, key: TimerKey, effects: Effects) -> None:
        group = self.groups.get(key.group_id)
        if group is not None:
            group.timer(key, effects)

    # -- members of the classic protocol -------------------------------------------------------------------------

    def _classic(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _is_consumer(self, group_id: str) -> bool:
        group = self.groups.get(group_id)
        return group is not None and group.type == CONSUMER

    def join(self, asked: Join, effects: Effects) -> None:
        request = asked.request
        group_id = request.group_id
        settings = self.settings
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            effects.answer(asked.reply, refused(Errors.INVALID_SESSION_TIMEOUT, request.member_id))
            return
        if self._is_consumer(group_id) and self.consumer is not None and self.consumer.join(asked, effects):
            return
        group = self._classic(group_id)
        if group is None:
            if request.member_id:
                effects.answer(asked.reply, refused(Errors.UNKNOWN_MEMBER_ID, request.member_id))
                return
            group = self.groups[group_id] = ClassicGroup(group_id, settings, self.clock)
        join(group, asked, self._new_id, effects)

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        if self._is_consumer(request.group_id) and self.consumer is not None:
            self.consumer.sync(request, reply, effects)
            return
        group = self._classic(request.group_id)
        if group is None:
            effects.answer(reply, SyncGroupResponse(error_code=Errors.UNKNOWN_MEMBER_ID))
        else:
            group.sync(request, reply, effects)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, effects: Effects
    ) -> Errors:
        if self._is_consumer(group_id) and self.consumer is not None:
            return self.consumer.classic_heartbeat(group_id, member_id, instance_id, generation, effects)
        group = self._classic(group_id)
        if group is None:
            return Errors.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation, effects)

    def leave(
        self, request: LeaveGroupRequest, leaving: Sequence[MemberIdentity], effects: Effects
    ) -> LeaveGroupResponse:
        if self._is_consumer(request.group_id) and self.consumer is not None:
            return LeaveGroupResponse(members=self.consumer.leave(request.group_id, leaving, effects))
        group = self._classic(request.group_id)
        if group is None:
            return LeaveGroupResponse(
                members=[
                    MemberResponse(
                        member_id=each.member_id, group_instance_id=each.group_instance_id,
                        error_code=Errors.UNKNOWN_MEMBER_ID,
                    )
                    for each in leaving
                ]
            )  # fmt: skip
        if group.state is State.DEAD:
            return LeaveGroupResponse(error_code=Errors.COORDINATOR_NOT_AVAILABLE)
        return LeaveGroupResponse(members=[group.leave(each, effects) for each in leaving])

    # -- offsets -------------------------------------------------------------------------------------------------

    def _offsets(self, group_id: str) -> GroupOffsets:
        found = self.offsets.get(group_id)
        if found is None:
            found = self.offsets[group_id] = GroupOffsets()
        return found

    def commit(
        self,
        who: Committer,
        wanted: Sequence[tuple[Place, CommittedOffset]],
        reply: Reply,
        effects: Effects,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Commit offsets, in a transaction where `producer` (id, epoch) is given. The answer is a list of Errors, one
        for each that is wanted."""
        errors = self._check_commit(who, [place for place, _ in wanted], reply.version, producer is not None)
        if all(errors):
            effects.answer(reply, errors)
            return
        group = self.groups.get(who.group_id)
        if group is None:
            group = self.groups[who.group_id] = ClassicGroup(who.group_id, self.settings, self.clock)
        group.committed_by(who.member_id, effects)
        limit = self.settings.offset_metadata_max
        errors = [
            error or (Errors.NONE if _java_length(offset.metadata) <= limit else Errors.OFFSET_METADATA_TOO_LARGE)
            for error, (_, offset) in zip(errors, wanted, strict=True)
        ]
        accepted = [each for each, error in zip(wanted, errors, strict=True) if not error]
        if not accepted:
            effects.answer(reply, errors)
            return
        offsets = self._offsets(who.group_id)
        offsets.begin_write(place for place, _ in accepted)
        producer_id = None if producer is None else producer[0]
        written = partial(self._committed, group, accepted, producer_id, errors, reply)
        effects.write([offset.record(who.group_id, place) for place, offset in accepted], written, producer, sequence=0)

    def _check_commit(
        self, who: Committer, places: Sequence[Place], version: int, transactional: bool
    ) -> list[Errors]:
        """An error for each place; only members of the consumer protocol may do one thing and not another."""
        group = self.groups.get(who.group_id)
        if group is not None:
            if group.type == CONSUMER and self.consumer is not None:
                return self.consumer.check_commit(
                    who.group_id, who.member_id, who.instance_id, who.generation, places, version, transactional
                )
            error = group.check_commit(who.member_id, who.instance_id, who.generation, transactional)
        elif who.generation < 0:
            error = Errors.NONE
        elif version >= GROUP_NOT_FOUND_SINCE and not transactional and self._new_consumer is not None:
            error = Errors.GROUP_ID_NOT_FOUND
        else:
            error = Errors.ILLEGAL_GENERATION
        return [error] * len(places)

    def _committed(
        self, group: Group, accepted: Sequence[tuple[Place, CommittedOffset]], producer_id: int | None,
        errors: list[Errors], reply: Reply, error: Errors, effects: Effects,
    ) -> None:  # fmt: skip
        offsets = self._offsets(group.group_id)
        offsets.end_write(place for place, _ in accepted)
        if error:
            failed = WRITE_FAILED.get(error, error)
            errors = [each or failed for each in errors]
        else:
            for place, offset in accepted:
                offsets.set(place, offset, producer_id)
        effects.answer(reply, errors)

    def fetch(
        self, group_id: str, places: Iterable[Place] | None, require_stable: bool
    ) -> Iterator[tuple[Place, OffsetState]]:
        """What is committed of these partitions; with None, of all that the group has."""
        offsets = self.offsets.get(group_id)
        if places is None:
            places = () if offsets is None else dict.fromkeys(
                (*offsets.committed, *(place for held in offsets.transactional.values() for place in held))
                if require_stable else offsets.committed
            )  # fmt: skip
        for place in places:
            if offsets is None:
                yield place, OffsetState(None, Errors.NONE)
            elif require_stable and offsets.transactional and offsets.is_unstable(place):
                yield place, OffsetState(None, Errors.UNSTABLE_OFFSET_COMMIT)
            else:
                yield place, OffsetState(offsets.committed.get(place), Errors.NONE)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> Errors:
        group = self.groups.get(group_id)
        return Errors.NONE if group is None else group.check_fetch(member_id, member_epoch)

    def delete_offsets(self, group_id: str, places: Sequence[Place], effects: Effects) -> tuple[Errors, list[Errors]]:
        """(error for the whole request, error of each partition)."""
        group = self.groups.get(group_id)
        if group is None:
            return Errors.GROUP_ID_NOT_FOUND, []
        error = group.check_delete_offsets()
        if error:
            return error, []
        errors = [
            Errors.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else Errors.NONE for topic, _ in places
        ]
        free = [place for place, error in zip(places, errors, strict=True) if not error]
        self._forget_offsets(group_id, free, effects)
        return Errors.NONE, errors

    def topic_deleted(self, topic: str, effects: Effects) -> None:
        """Offsets of a topic that is no more would count for a new one of its name."""
        for group_id, offsets in self.offsets.items():
            gone = [place for place in offsets.committed if place[0] == topic]
            if gone:
                self._forget_offsets(group_id, gone, effects)

    def expire(self, group_id: str, effects: Effects) -> None:
        """Forget the group's offsets whose retention is over, and the group if nothing is left of it."""
        group = self.groups.get(group_id)
        if group is None:
            return
        offsets = self.offsets.get(group_id)
        if offsets is not None:
            over = offsets.expired(self.clock.now_ms(), self.settings.offsets_retention_ms, group)
            self._forget_offsets(group_id, over, effects)
        if group.is_empty and not self.offsets.get(group_id):
            self._forget_group(group, effects)

    def _forget_offsets(self, group_id: str, places: Iterable[Place], effects: Effects) -> None:
        offsets = self.offsets.get(group_id)
        if offsets is None:
            return
        known = [place for place in places if place in offsets.committed]
        for place in known:
            offsets.remove(place)
        if known:
            effects.write([Record(offset_key(group_id, *place), None) for place in known], ignore)

    def _forget_group(self, group: Group, effects: Effects) -> None:
        group.removed(effects)
        del self.groups[group.group_id]
        if not self.offsets.get(group.group_id):  # open transactions hold theirs
            self.offsets.pop(group.group_id, None)
        tombstones = group.tombstones()
        if tombstones:
            effects.write(tombstones, ignore)

    # -- groups as a whole ---------------------------------------------------------------------------------------

    def delete_group(self, group_id: str, effects: Effects) -> Errors:
        group = self.groups.get(group_id)
        if group is None:
            return Errors.GROUP_ID_NOT_FOUND
        if not group.is_empty:
            return Errors.NON_EMPTY_GROUP
        offsets = self.offsets.get(group_id)
        if offsets is not None:
            self._forget_offsets(group_id, list(offsets.committed), effects)
        self._forget_group(group, effects)
        return Errors.NONE

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """DescribeGroups tells of classic groups. An unknown one is Dead, and from version 6 on an error (KIP-1043)."""
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            answer = DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
            if version >= 6:
                answer.error_code = Errors.GROUP_ID_NOT_FOUND
                why = "not found" if group is None else "is not a classic group"
                answer.error_message = f"Group {group_id} {why}."
            return answer
        stable = group.state is State.STABLE
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state_name,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if stable else "",
            members=[_described(member, group.protocol if stable else None, stable) for member in group.members],
        )


def _described(member: Member, protocol: str | None, stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol),
        member_assignment=member.assignment if stable else b"",
    )


def _java_length(text: str) -> int:
    """In UTF-16 units, as Kafka counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2
