"""The group's epoch and its target assignment."""

from __future__ import annotations

from collections.abc import Callable

from pybroker.coordinator.assignors.spec import Subscriber
from pybroker.coordinator.consumer.catalog import TopicCatalog
from pybroker.coordinator.consumer.member import Member
from pybroker.coordinator.consumer.settings import ConsumerRules
from pybroker.coordinator.consumer.state import Draft, GroupState, Resolved, Wanted
from pybroker.coordinator.consumer.topics import resolve_regex, topics_hash

REGEX_MIN_AGE_MS = 10_000  # patterns are not resolved again sooner than that


def update_epoch(draft: Draft, changed: bool, catalog: TopicCatalog) -> None:
    """A new group epoch if subscriptions have `changed`, or the topics that they mean."""
    state = draft.state
    known = topics_hash(state.subscribed(), catalog)
    if changed or known != state.topics_hash:
        draft.epoch(state.epoch + 1, known)


def update_regexes(
    draft: Draft, before: str, now: str, catalog: TopicCatalog, may_see: Callable[[str], bool], now_ms: int
) -> None:
    """A member's pattern is another one: resolve it if it is new, forget the old one if nobody has it any more.

    Kafka resolves it in the background and lets the member wait for its next heartbeat.
    """
    if before == now:
        return
    forget_regex(draft, before)
    if now and now not in draft.state.regexes:
        topics = frozenset(resolve_regex(now, catalog, may_see))
        draft.regex(now, Resolved(topics, catalog.version, now_ms))


def forget_regex(draft: Draft, regex: str) -> None:
    state = draft.state
    if regex in state.regexes and all(member.regex != regex for member in state.members.values()):
        draft.regex(regex, None)


def refresh_regexes(
    draft: Draft, rules: ConsumerRules, catalog: TopicCatalog, may_see: Callable[[str], bool], now_ms: int
) -> bool:
    """Resolve patterns again that may match other topics by now; whether one does."""
    changed = False
    for regex, old in list(draft.state.regexes.items()):
        age = now_ms - old.at_ms
        outdated = old.version != catalog.version and age >= REGEX_MIN_AGE_MS
        if outdated or age >= rules.settings.regex_refresh_interval_ms or age < 0:
            topics = frozenset(resolve_regex(regex, catalog, may_see))
            changed = changed or topics != old.topics
            draft.regex(regex, Resolved(topics, catalog.version, now_ms))
    return changed


def update_target(draft: Draft, rules: ConsumerRules, catalog: TopicCatalog, now_ms: int) -> None:
    """Assign anew if the group's epoch has moved on; not again before the assignment interval is over (KIP-1263)."""
    state = draft.state
    if state.epoch <= state.target_epoch:
        return
    if 0 <= now_ms - state.target_at_ms < rules.assignment_interval_ms(state.group_id):
        return
    partitions: dict[bytes, int] = {}
    ids: dict[str, bytes] = {}
    for name in sorted(state.subscribed()):
        topic = catalog.topic(name)
        if topic is not None:
            ids[name] = topic.topic_id
            partitions[topic.topic_id] = topic.partitions
    members = {
        member_id: Subscriber(
            member.instance_id,
            frozenset(ids[name] for name in state.subscription(member) if name in ids),
            state.wants(member_id),
        )
        for member_id, member in state.members.items()
    }
    target = rules.assignors[assignor_of(state, rules)](members, partitions)
    for member_id in members:
        wanted = target.get(member_id, {})
        if state.target.get(member_id) != wanted:
            draft.wanted(member_id, wanted)
    draft.target(state.epoch, now_ms)


def assignor_of(state: GroupState, rules: ConsumerRules) -> str:
    """The one that most members want, the default where nobody cares."""
    votes = state.votes()
    return max(rules.assignors, key=lambda name: votes[name])


def reachable(state: GroupState, member: Member, catalog: TopicCatalog) -> Wanted:
    """The member's target without topics to which it no longer subscribes, or that are gone."""
    wanted = state.wants(member.member_id)
    if not wanted:
        return wanted
    subscribed = state.subscription(member)
    return {topic_id: numbers for topic_id, numbers in wanted.items() if catalog.name_of(topic_id) in subscribed}
