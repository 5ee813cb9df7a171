"""Members of the classic protocol in a consumer group: while a group changes over, both kinds are in it.

Such a member reaches each of its epochs by JoinGroup and SyncGroup; its Heartbeat is told to rejoin when there is
something new. The coordinator assigns for all, so nobody leads. Sources: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pybroker.coordinator.classic_join import KNOWN_MEMBER_ID_SINCE, Join, refused
from pybroker.coordinator.consumer import checks
from pybroker.coordinator.consumer.embedded import CONSUMER_PROTOCOL, by_topic_id, read_subscription, write_assignment
from pybroker.coordinator.consumer.group import ConsumerGroup, Plan
from pybroker.coordinator.consumer.heartbeat import follow, replace_static, update_subscription
from pybroker.coordinator.consumer.member import Classic, Member, State
from pybroker.coordinator.consumer.migration import Migration
from pybroker.coordinator.consumer.state import Draft, GroupState
from pybroker.coordinator.effects import Effects, Reply
from pybroker.protocol.codec import DecodeError
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.join_group import JoinGroupResponse
from pybroker.protocol.messages.leave_group import MemberIdentity, MemberResponse
from pybroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from pybroker.protocol.uuids import random_uuid, uuid_to_text

logger = logging.getLogger(__name__)


def join(group: ConsumerGroup, asked: Join, migration: Migration, effects: Effects) -> None:
    """JoinGroup of a new member, or of one that follows."""

    def decide(draft: Draft, effects: Effects) -> Plan:
        member = _joining(group, draft, asked)
        answer = JoinGroupResponse(
            member_id=member.member_id,
            generation_id=member.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=asked.protocols[0][0],
        )
        if migration.should_downgrade(group.state, draft.state):
            return migration.plan_replacement(group, draft, answer)

        def then(error: Errors, effects: Effects) -> None:
            if not error:
                group.joined(member.member_id, effects)

        return Plan(draft, answer, then)

    def answer(response: Any, error: Errors, message: str | None, effects: Effects) -> None:
        if error:
            member_id = message or "" if error == Errors.MEMBER_ID_REQUIRED else asked.request.member_id
            response = refused(error, member_id)
        effects.answer(asked.reply, response)

    group.submit(decide, answer, effects)


def _joining(group: ConsumerGroup, draft: Draft, asked: Join) -> Member:
    """The member after its next step. Raises KafkaError; MEMBER_ID_REQUIRED with the id as its message."""
    request, state = asked.request, draft.state
    member_id = request.member_id or uuid_to_text(random_uuid())
    checks.check_room(state, member_id, group.rules.settings.max_size)
    if not _supports(state, request.protocol_type, [name for name, _ in asked.protocols]):
        raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL)
    instance_id = request.group_instance_id
    if not request.member_id and instance_id is None and asked.reply.version >= KNOWN_MEMBER_ID_SINCE:
        raise KafkaError(Errors.MEMBER_ID_REQUIRED, member_id)
    try:
        subscription = read_subscription(asked.protocols[0][1])
    except DecodeError as error:
        raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
    before = _before(draft, member_id, instance_id, is_new=not request.member_id)
    member = replace(
        before,
        instance_id=before.instance_id if instance_id is None else instance_id,
        rack_id=before.rack_id if subscription.rack_id is None else subscription.rack_id,
        client_id=asked.client_id or "",
        client_host=asked.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        regex="",
        rebalance_timeout_ms=asked.rebalance_timeout_ms,
        classic=Classic(request.session_timeout_ms, tuple(asked.protocols)),
    )
    around = group.around()
    look = update_subscription(draft, before, member, None, around)
    owned = by_topic_id({each.topic: each.partitions for each in subscription.owned_partitions}, group.catalog)
    return follow(draft, member_id, owned, around, look)


def _supports(state: GroupState, protocol_type: str, names: Sequence[str]) -> bool:
    """Whether there is a protocol that all classic members know."""
    if protocol_type != CONSUMER_PROTOCOL or not names:
        return False
    classics = (each.classic for each in state.members.values())
    known = [{name for name, _ in each.protocols} for each in classics if each is not None]
    return any(all(name in each for each in known) for name in names)


def _before(draft: Draft, member_id: str, instance_id: str | None, *, is_new: bool) -> Member:
    state = draft.state
    if instance_id is None:
        return state.members.get(member_id) or Member(member_id)
    if not is_new:
        return checks.known_static_member(state, instance_id, member_id)
    holder = state.static_member(instance_id)
    return Member(member_id) if holder is None else replace_static(draft, holder, member_id)


def sync(group: ConsumerGroup, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
    """SyncGroup: what the member owns in its epoch."""

    def decide(draft: Draft, effects: Effects) -> Plan:
        member = _classic_member(draft.state, request.member_id, request.group_instance_id)
        assert member.classic is not None
        if request.generation_id != member.epoch:
            raise KafkaError(Errors.ILLEGAL_GENERATION)
        name, subscription = member.classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (None, name):
            raise KafkaError(Errors.INCONSISTENT_GROUP_PROTOCOL)
        if _is_behind(draft.state, member) and member.state is not State.UNREVOKED_PARTITIONS:
            group.expect_join(member, effects)
            raise KafkaError(Errors.REBALANCE_IN_PROGRESS)
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=write_assignment(member.assigned, group.catalog, subscription),
        )
        return Plan(draft, response, lambda _, effects: group.synced(member.member_id, effects))

    def answer(response: Any, error: Errors, message: str | None, effects: Effects) -> None:
        effects.answer(reply, SyncGroupResponse(error_code=error) if error else response)

    group.submit(decide, answer, effects)


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, effects: Effects
) -> Errors:
    """Whether the member is to rejoin."""
    state = group.state
    try:
        member = _classic_member(state, member_id, instance_id)
    except KafkaError as error:
        return error.code
    if generation != member.epoch:
        return Errors.ILLEGAL_GENERATION
    group.touch(member_id, effects)
    if (
        _is_behind(state, member)
        or member.state is State.UNREVOKED_PARTITIONS
        or (member.state is State.UNRELEASED_PARTITIONS and not _waits_for_others(state, member))
    ):
        group.expect_join(member, effects)
        return Errors.REBALANCE_IN_PROGRESS
    return Errors.NONE


def _is_behind(state: GroupState, member: Member) -> bool:
    """There is a new target; or there must be one, and only classic members are there to ask for it by rejoining."""
    only_classic = state.epoch > state.target_epoch and state.classic_members() == len(state.members)
    return member.epoch < (state.epoch if only_classic else state.target_epoch)


def _waits_for_others(state: GroupState, member: Member) -> bool:
    """Others still have something of what it shall get."""
    return any(
        not state.is_free(topic_id, partition)
        for topic_id, partitions in state.wants(member.member_id).items()
        for partition in partitions - member.assigned.get(topic_id, {}).keys()
    )


def _classic_member(state: GroupState, member_id: str, instance_id: str | None) -> Member:
    """Raises KafkaError UNKNOWN_MEMBER_ID (also for a member of the other protocol), FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = checks.known_member(state, member_id)
    else:
        member = checks.known_static_member(state, instance_id, member_id)
    if member.classic is None:
        raise KafkaError(Errors.UNKNOWN_MEMBER_ID)
    return member


def leave(
    group: ConsumerGroup, leaving: Sequence[MemberIdentity], migration: Migration, effects: Effects
) -> list[MemberResponse]:
    """LeaveGroup, of members of either protocol: tools take them out with it."""
    state = group.state
    answers: list[MemberResponse] = []
    gone: list[str] = []
    for each in leaving:
        member_id, error = _leaving(state, each)
        if not error and member_id not in gone:
            logger.info("Group %s: member %s leaves (%s)", group.group_id, member_id, each.reason or "no reason given")
            gone.append(member_id)
        answers.append(
            MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error)
        )

    def decide(draft: Draft, effects: Effects) -> Plan:
        left = [member_id for member_id in gone if member_id in draft.state.members]
        return migration.plan_removal(group, draft, left, None) if left else Plan(draft, None)

    if gone:
        group.submit(decide, lambda response, error, message, effects: None, effects)
    return answers


def _leaving(state: GroupState, leaving: MemberIdentity) -> tuple[str, Errors]:
    try:
        if leaving.group_instance_id is None:
            return checks.known_member(state, leaving.member_id).member_id, Errors.NONE
        holder = state.static_member(leaving.group_instance_id)
        if holder is None:
            return "", Errors.UNKNOWN_MEMBER_ID
        if leaving.member_id:
            checks.check_holder(holder, leaving.group_instance_id, leaving.member_id)
        return holder.member_id, Errors.NONE
    except KafkaError as error:
        return "", error.code
