"""A consumer group as its records say. Nothing changes it but `apply`, so that replaying the log rebuilds it exactly.

A decision works on a Draft: the state as it would be, and the records that lead there. They are written in one batch,
and when that is committed the draft's state is the group's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pybroker.coordinator.consumer.member import Member, Owned, State, classic_of, owned_of
from pybroker.coordinator.records import Record
from pybroker.protocol.messages.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from pybroker.protocol.messages.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from pybroker.protocol.messages.consumer_group_metadata import ConsumerGroupMetadataKey, ConsumerGroupMetadataValue
from pybroker.protocol.messages.consumer_group_partition_metadata import ConsumerGroupPartitionMetadataKey
from pybroker.protocol.messages.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from pybroker.protocol.messages.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from pybroker.protocol.messages.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

FIRST_EPOCH = 1  # of a group, and of its target, before anything is written
KEYS = (
    ConsumerGroupMetadataKey, ConsumerGroupPartitionMetadataKey, ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupRegularExpressionKey,
)  # fmt: skip

Wanted = Mapping[bytes, frozenset[int]]  # a member's target: topic id → partitions


class Resolved(NamedTuple):
    """What a pattern matched, by which version of the catalog and when (ms since the epoch)."""

    topics: frozenset[str]
    version: int
    at_ms: int


class GroupState:
    """See the module's text. `owners` says which member has a partition, given or not yet given up."""

    __slots__ = (
        "epoch", "group_id", "members", "owners", "regexes", "static", "target", "target_at_ms", "target_epoch",
        "topics_hash",
    )  # fmt: skip

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.topics_hash = 0
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # instance id → member id
        self.owners: dict[tuple[bytes, int], str] = {}
        self.target: dict[str, Wanted] = {}
        self.target_epoch = FIRST_EPOCH
        self.target_at_ms = 0  # when it was computed, ms since the epoch
        self.regexes: dict[str, Resolved] = {}

    def copy(self) -> GroupState:
        twin = GroupState.__new__(GroupState)
        twin.group_id, twin.epoch, twin.topics_hash = self.group_id, self.epoch, self.topics_hash
        twin.members, twin.static, twin.owners = dict(self.members), dict(self.static), dict(self.owners)
        twin.target, twin.target_epoch, twin.target_at_ms = dict(self.target), self.target_epoch, self.target_at_ms
        twin.regexes = dict(self.regexes)
        return twin

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def is_pristine(self) -> bool:
        """Nothing was ever written for it."""
        return not self.members and self.epoch == FIRST_EPOCH

    def wants(self, member_id: str) -> Wanted:
        return self.target.get(member_id, {})

    def is_free(self, topic_id: bytes, partition: int) -> bool:
        return (topic_id, partition) not in self.owners

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def regex_topics(self, regex: str) -> frozenset[str]:
        resolved = self.regexes.get(regex)
        return frozenset() if resolved is None else resolved.topics

    def subscription(self, member: Member) -> frozenset[str]:
        """All topics of a member, by name and by pattern."""
        topics = frozenset(member.topics)
        return topics | self.regex_topics(member.regex) if member.regex else topics

    def subscribed(self) -> set[str]:
        """All topics of all members."""
        found: set[str] = set()
        for member in self.members.values():
            found.update(member.topics)
        for regex in {member.regex for member in self.members.values() if member.regex}:
            found |= self.regex_topics(regex)
        return found

    def votes(self) -> Counter[str]:
        """How many members want which assignor."""
        return Counter(member.assignor for member in self.members.values() if member.assignor is not None)

    def classic_members(self) -> int:
        return sum(member.classic is not None for member in self.members.values())

    # -- replaying -----------------------------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """One record of this group; what it is about may be gone already."""
        key, value = record
        _APPLY[type(key)](self, key, value)

    def _apply_epoch(self, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None) -> None:
        if value is not None:
            self.epoch, self.topics_hash = value.epoch, value.metadata_hash

    def _apply_nothing(self, key: Any, value: Any) -> None:
        """Partition metadata: releases before 4.1 wrote down what they knew of the topics."""

    def _apply_member(
        self, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        old = self.members.get(key.member_id)
        if old is not None and old.instance_id is not None and self.static.get(old.instance_id) == key.member_id:
            del self.static[old.instance_id]
        if value is None:
            if old is not None:
                self._own(old, {}, {})
                del self.members[key.member_id]
            return
        self.members[key.member_id] = replace(
            old or Member(key.member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=tuple(sorted(value.subscribed_topic_names)),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=classic_of(value.classic_member_metadata),
        )
        if value.instance_id is not None:
            self.static[value.instance_id] = key.member_id

    def _apply_target(
        self, key: ConsumerGroupTargetAssignmentMetadataKey, value: ConsumerGroupTargetAssignmentMetadataValue | None
    ) -> None:
        if value is None:
            self.target.clear()
            self.target_epoch, self.target_at_ms = FIRST_EPOCH, 0
        else:
            self.target_epoch, self.target_at_ms = value.assignment_epoch, value.assignment_timestamp

    def _apply_wanted(
        self, key: ConsumerGroupTargetAssignmentMemberKey, value: ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            self.target[key.member_id] = {each.topic_id: frozenset(each.partitions) for each in value.topic_partitions}

    def _apply_assignment(
        self, key: ConsumerGroupCurrentMemberAssignmentKey, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        old = self.members.get(key.member_id)
        if value is None:
            if old is not None:
                self._own(old, {}, {})
                self.members[key.member_id] = replace(old, assigned={}, revoking={})
            return
        member = replace(
            old or Member(key.member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=State.of(value.state),
            assigned=owned_of(value.assigned_partitions, value.member_epoch),
            revoking=owned_of(value.partitions_pending_revocation, value.member_epoch),
        )
        self._own(old or member, member.assigned, member.revoking)
        self.members[key.member_id] = member

    def _own(self, member: Member, assigned: Owned, revoking: Owned) -> None:
        """The member has these now, instead of what it had. In a log that is being cleaned an old claim may follow a
        newer one of somebody else for a while: what somebody else has is not taken back."""
        owners = self.owners
        for each in _places(member.assigned, member.revoking):
            if owners.get(each) == member.member_id:
                del owners[each]
        for each in _places(assigned, revoking):
            owners[each] = member.member_id

    def _apply_regex(
        self, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
    ) -> None:
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            resolved = Resolved(frozenset(value.topics), value.version, value.timestamp)
            self.regexes[key.regular_expression] = resolved


_APPLY: dict[type, Any] = {
    ConsumerGroupMetadataKey: GroupState._apply_epoch,
    ConsumerGroupPartitionMetadataKey: GroupState._apply_nothing,
    ConsumerGroupMemberMetadataKey: GroupState._apply_member,
    ConsumerGroupTargetAssignmentMetadataKey: GroupState._apply_target,
    ConsumerGroupTargetAssignmentMemberKey: GroupState._apply_wanted,
    ConsumerGroupCurrentMemberAssignmentKey: GroupState._apply_assignment,
    ConsumerGroupRegularExpressionKey: GroupState._apply_regex,
}


def _places(assigned: Owned, revoking: Owned) -> Iterator[tuple[bytes, int]]:
    for owned in (assigned, revoking):
        for topic_id, epochs in owned.items():
            for partition in epochs:
                yield topic_id, partition


class Draft:
    """A group's state after what is being decided, and the records for it. The state given is not touched."""

    __slots__ = ("_own", "records", "state")

    def __init__(self, state: GroupState) -> None:
        self.state = state
        self.records: list[Record] = []
        self._own = False  # the state is a copy

    def add(self, key: Any, value: Any) -> None:
        if not self._own:
            self.state, self._own = self.state.copy(), True
        record = Record(key, value)
        self.records.append(record)
        self.state.apply(record)

    # One method for each kind of record.

    def member(self, member: Member) -> None:
        self.add(ConsumerGroupMemberMetadataKey(group_id=self._id, member_id=member.member_id), member.metadata_value())

    def assignment(self, member: Member) -> None:
        key = ConsumerGroupCurrentMemberAssignmentKey(group_id=self._id, member_id=member.member_id)
        self.add(key, member.assignment_value())

    def wanted(self, member_id: str, wanted: Wanted) -> None:
        partitions = [
            TopicPartition(topic_id=topic_id, partitions=sorted(numbers)) for topic_id, numbers in wanted.items()
        ]
        self.add(
            ConsumerGroupTargetAssignmentMemberKey(group_id=self._id, member_id=member_id),
            ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions),
        )

    def target(self, epoch: int, at_ms: int) -> None:
        self.add(
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self._id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=at_ms),
        )

    def epoch(self, epoch: int, topics_hash: int) -> None:
        value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=topics_hash)
        self.add(ConsumerGroupMetadataKey(group_id=self._id), value)

    def regex(self, regex: str, resolved: Resolved | None) -> None:
        self.add(
            ConsumerGroupRegularExpressionKey(group_id=self._id, regular_expression=regex),
            None if resolved is None else ConsumerGroupRegularExpressionValue(
                topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.at_ms
            ),
        )  # fmt: skip

    def remove_member(self, member_id: str) -> None:
        self.add(ConsumerGroupCurrentMemberAssignmentKey(group_id=self._id, member_id=member_id), None)
        self.add(ConsumerGroupTargetAssignmentMemberKey(group_id=self._id, member_id=member_id), None)
        self.add(ConsumerGroupMemberMetadataKey(group_id=self._id, member_id=member_id), None)

    def remove_group(self) -> None:
        """Every record of the group gets its tombstone, the group's own last."""
        for member_id in list(self.state.members):
            self.remove_member(member_id)
        for member_id in list(self.state.target):
            self.add(ConsumerGroupTargetAssignmentMemberKey(group_id=self._id, member_id=member_id), None)
        self.add(ConsumerGroupTargetAssignmentMetadataKey(group_id=self._id), None)
        self.add(ConsumerGroupPartitionMetadataKey(group_id=self._id), None)  # an earlier release may have written one
        for regex in list(self.state.regexes):
            self.regex(regex, None)
        self.add(ConsumerGroupMetadataKey(group_id=self._id), None)

    @property
    def _id(self) -> str:
        return self.state.group_id
