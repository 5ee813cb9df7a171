"""ConsumerGroupDescribe: a consumer group as tools show it."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.coordinator.consumer.group import ConsumerGroup
from pybroker.coordinator.consumer.member import Member
from pybroker.coordinator.consumer.target import assignor_of
from pybroker.protocol.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    TopicPartitions,
)
from pybroker.protocol.messages.consumer_group_describe import Member as DescribedMember

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe(group: ConsumerGroup) -> DescribedGroup:
    """As it is committed; the caller adds authorized operations."""
    state = group.state
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=state.epoch,
        assignment_epoch=state.target_epoch,
        assignor_name=assignor_of(state, group.rules),
        members=[_described(group, member) for member in state.members.values()],
    )


def _described(group: ConsumerGroup, member: Member) -> DescribedMember:
    owned: dict[bytes, list[int]] = {}
    for each in (member.assigned, member.revoking):  # what it shall give up it still owns
        for topic_id, epochs in each.items():
            owned.setdefault(topic_id, []).extend(epochs)
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(owned.items(), group.catalog),
        target_assignment=_assignment(group.state.wants(member.member_id).items(), group.catalog),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(owned: Iterable[tuple[bytes, Iterable[int]]], catalog: TopicCatalog) -> Assignment:
    """Topics that are gone are left out."""
    named = ((topic_id, catalog.name_of(topic_id), partitions) for topic_id, partitions in owned)
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
            for topic_id, name, partitions in named
            if name is not None
        ]
    )
