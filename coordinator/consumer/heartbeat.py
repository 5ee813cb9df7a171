"""ConsumerGroupHeartbeat: a member joins, reports what it owns, and is told what it shall own. Pure: fills a Draft."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from pybroker.coordinator.consumer import checks
from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.coordinator.consumer.member import JOINING, Member, same_partitions
from pybroker.coordinator.consumer.reconcile import Reported, reconcile
from pybroker.coordinator.consumer.settings import ConsumerRules
from pybroker.coordinator.consumer.state import Draft
from pybroker.coordinator.consumer.target import (
    reachable,
    refresh_regexes,
    update_epoch,
    update_regexes,
    update_target,
)
from pybroker.coordinator.consumer.topics import compile_regex
from pybroker.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

logger = logging.getLogger(__name__)


class Beat(NamedTuple):
    """A request and where it came from. `may_see`: may its sender describe that topic?"""

    request: ConsumerGroupHeartbeatRequest
    version: int
    client_id: str
    client_host: str
    may_see: Callable[[str], bool]


class Surroundings(NamedTuple):
    """What a decision looks at besides the group. `topics_moved`: topics may be others than the group has seen."""

    rules: ConsumerRules
    catalog: TopicCatalog
    now_ms: int
    topics_moved: bool


def heartbeat(draft: Draft, beat: Beat, around: Surroundings) -> ConsumerGroupHeartbeatResponse:
    """The answer to a member that stays or comes. Raises KafkaError."""
    request = beat.request
    checks.check_room(draft.state, request.member_id, around.rules.settings.max_size)
    if request.subscribed_topic_regex and request.subscribed_topic_regex not in draft.state.regexes:
        compile_regex(request.subscribed_topic_regex)
    reported = _reported(request)
    before = _member(draft, request, reported)
    member = _updated(before, beat)
    changed = update_subscription(draft, before, member, beat.may_see, around)
    member = follow(draft, member.member_id, reported, around, changed)
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=around.rules.heartbeat_interval_ms(draft.state.group_id),
        assignment=_assignment(member) if _is_full(request) or not same_partitions(
            before.assigned, member.assigned
        ) else None,
    )  # fmt: skip


def _reported(request: ConsumerGroupHeartbeatRequest) -> Reported:
    if request.topic_partitions is None:
        return None
    return {each.topic_id: frozenset(each.partitions) for each in request.topic_partitions}


def _member(draft: Draft, request: ConsumerGroupHeartbeatRequest, reported: Reported) -> Member:
    """The member that sends this, as it has been so far."""
    state = draft.state
    member_id, instance_id, epoch = request.member_id, request.instance_id, request.member_epoch
    if epoch != JOINING:
        member = (
            checks.known_member(state, member_id)
            if instance_id is None
            else checks.known_static_member(state, instance_id, member_id)
        )
        checks.check_epoch(member, epoch, reported)
        return member
    holder = state.static_member(instance_id)
    if holder is None:
        logger.info("Group %s: member %s joins", state.group_id, member_id)
        return state.members.get(member_id) or Member(member_id)
    assert instance_id is not None
    if holder.classic is None:
        checks.check_released(holder, instance_id, member_id)
    return replace_static(draft, holder, member_id)


def replace_static(draft: Draft, holder: Member, member_id: str) -> Member:
    """A static member has come back under another id: it has what it had."""
    logger.info(
        "Group %s: static member %s is back as %s, it was %s",
        draft.state.group_id, holder.instance_id, member_id, holder.member_id,
    )  # fmt: skip
    wanted = draft.state.wants(holder.member_id)
    draft.remove_member(holder.member_id)
    member = replace(holder, member_id=member_id, epoch=JOINING, previous_epoch=JOINING)
    draft.member(member)
    draft.wanted(member_id, wanted)
    draft.assignment(member)
    return member


def _updated(member: Member, beat: Beat) -> Member:
    """With what the request says; what it leaves out stays as it is. Nearly always that is everything."""
    request = beat.request
    topics, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    if (
        topics is None
        and regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and timeout == -1
        and request.instance_id == member.instance_id
        and beat.client_id == member.client_id
        and beat.client_host == member.client_host
        and member.classic is None
    ):
        return member
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=member.topics if topics is None else tuple(sorted(set(topics))),
        regex=member.regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def update_subscription(
    draft: Draft, before: Member, member: Member, may_see: Callable[[str], bool] | None, around: Surroundings
) -> bool:
    """Write down what the member says of itself, and the group's next epoch if that, or a topic, asks for it.

    Without `may_see` (a classic member) patterns are left as they are.

    Returns whether the member may have to give up topics at once.
    """
    state = draft.state
    if member is not before and (member != before or member.member_id not in state.members):
        topics = state.regex_topics(before.regex)
        draft.member(member)
        update_regexes(draft, before.regex, member.regex, around.catalog, may_see or _nothing, around.now_ms)
        changed = before.topics != member.topics or topics != draft.state.regex_topics(member.regex)
    else:
        changed = False
    if may_see is not None and draft.state.regexes:
        changed = refresh_regexes(draft, around.rules, around.catalog, may_see, around.now_ms) or changed
    if changed or around.topics_moved:
        update_epoch(draft, changed, around.catalog)
    return changed or around.topics_moved


def _nothing(topic: str) -> bool:
    return False


def follow(draft: Draft, member_id: str, reported: Reported, around: Surroundings, look: bool) -> Member:
    """Assign if it is time, and take the member a step further. `look`: even if it has followed the target already."""
    update_target(draft, around.rules, around.catalog, around.now_ms)
    state = draft.state
    member = state.members[member_id]
    if member.is_at(state.target_epoch) and not look:
        return member
    step = reconcile(member, state, reachable(state, member, around.catalog), reported)
    if step != member:
        draft.assignment(step)
    return step


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """A member that sends everything wants to hear everything."""
    if request.member_epoch == JOINING:
        return True
    says_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and says_topics and request.topic_partitions is not None


def _assignment(member: Member) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=list(epochs)) for topic_id, epochs in member.assigned.items()
        ]
    )
