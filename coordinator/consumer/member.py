"""One member of a consumer group, as it is written down: an immutable value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from pybroker.protocol.messages.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from pybroker.protocol.messages.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
)

JOINING = 0  # epochs that are none: of a member that joins,
LEAVING = -1  # that leaves,
LEAVING_FOR_A_WHILE = -2  # and of a static one that leaves and is expected back

# Topic id → partition → the epoch in which the member was given it.
Owned = Mapping[bytes, Mapping[int, int]]


class State(IntEnum):
    """Where a member is on its way to the target assignment; the values are those of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # has to give up partitions, and has not said yet that it did
    UNRELEASED_PARTITIONS = 2  # is at the target's epoch, but others still have some of its partitions
    UNKNOWN = 127  # written by a later version

    @classmethod
    def of(cls, value: int) -> State:
        return cls(value) if value in _KNOWN else cls.UNKNOWN


_KNOWN = frozenset(each.value for each in State)


class Classic(NamedTuple):
    """What a member of the classic protocol has besides: it sends JoinGroup, SyncGroup and Heartbeat."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # name and subscription, its first choice first


@dataclass(frozen=True, slots=True)
class Member:
    """`topics` are sorted names, `regex` "" for none. `assigned` and `revoking` together are what it owns."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: Classic | None = None
    epoch: int = JOINING
    previous_epoch: int = JOINING
    state: State = State.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)

    def is_at(self, target_epoch: int) -> bool:
        """Nothing is left to do for this target."""
        return self.state is State.STABLE and self.epoch == target_epoch

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        classic = self.classic
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=list(self.topics),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=None if classic is None else ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
                ],
            ),
        )  # fmt: skip

    def assignment_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_written(self.assigned),
            partitions_pending_revocation=_written(self.revoking),
        )


def _written(owned: Owned) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values()))
        for topic_id, epochs in owned.items()
    ]


def owned_of(topics: Iterable[TopicPartitions], epoch: int) -> Owned:
    """What a record says. Before 4.3 it did not say since when; then it is taken to be since the member's epoch."""
    return {
        each.topic_id: dict(
            zip(each.partitions, each.assignment_epochs, strict=True)
            if each.assignment_epochs is not None and len(each.assignment_epochs) == len(each.partitions)
            else ((number, epoch) for number in each.partitions)
        )
        for each in topics
    }


def classic_of(metadata: ClassicMemberMetadata | None) -> Classic | None:
    """What a record says; it may lack the field, which decodes to one without any protocol."""
    if metadata is None or not metadata.supported_protocols:
        return None
    protocols = tuple((each.name, each.metadata) for each in metadata.supported_protocols)
    return Classic(metadata.session_timeout_ms, protocols)


def same_partitions(one: Owned, other: Owned) -> bool:
    """Whether two members own the same, since whenever."""
    return one.keys() == other.keys() and all(epochs.keys() == other[topic].keys() for topic, epochs in one.items())
