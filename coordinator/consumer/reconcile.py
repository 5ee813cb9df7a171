"""A member's next step towards the target assignment: it gives up first, and is given only what nobody has any more.

state                 | what must be so before it goes on          | epoch from which it goes on
--------------------- | ------------------------------------------ | ---------------------------------
STABLE                | its epoch is not the target's, or it has   | its own
                      | what it shall not have (any more)          |
UNREVOKED_PARTITIONS  | it no longer owns what it had to give up   | the next one, up to the target's
UNRELEASED_PARTITIONS | nothing                                    | its own
UNKNOWN               | it owns nothing at all (else it is fenced) | the target's

and where it gets to, by the first line that holds:

it still owns partitions outside the target | UNREVOKED_PARTITIONS, at the epoch from which it went on
the target holds partitions that others have | UNRELEASED_PARTITIONS, at the target's epoch, with those that are free
otherwise                                    | STABLE, at the target's epoch

Source: KIP-848; the states are Kafka's MemberState, the steps its CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pybroker.coordinator.consumer.member import Member, Owned, State
from pybroker.coordinator.consumer.state import GroupState, Wanted
from pybroker.protocol.errors import Errors, KafkaError

Reported = Mapping[bytes, frozenset[int]] | None  # what a member says it owns; None: nothing new


class _Look(NamedTuple):
    """What a rule looks at."""

    member: Member
    target_epoch: int
    wanted: Wanted
    reported: Reported


class _Rule(NamedTuple):
    may_go_on: Callable[[_Look], bool]
    from_epoch: Callable[[_Look], int]


def _is_behind(look: _Look) -> bool:
    member, wanted = look.member, look.wanted
    return member.epoch != look.target_epoch or any(
        epochs.keys() - wanted.get(topic_id, frozenset()) for topic_id, epochs in member.assigned.items()
    )


def _has_revoked(look: _Look) -> bool:
    return not _owns_any(look.reported, look.member.revoking)


def _owns_any(reported: Reported, revoking: Owned) -> bool:
    """Whether the member may still own one of these: silence is no answer."""
    if reported is None:
        return True
    return any(topic_id in reported and not reported[topic_id].isdisjoint(revoking[topic_id]) for topic_id in revoking)


def _owns_nothing(look: _Look) -> bool:
    if look.reported is None or any(look.reported.values()):
        raise KafkaError(
            Errors.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
    return True


RULES: dict[State, _Rule] = {
    State.STABLE: _Rule(_is_behind, lambda look: look.member.epoch),
    State.UNREVOKED_PARTITIONS: _Rule(_has_revoked, lambda look: min(look.member.epoch + 1, look.target_epoch)),
    State.UNRELEASED_PARTITIONS: _Rule(lambda look: True, lambda look: look.member.epoch),
    State.UNKNOWN: _Rule(_owns_nothing, lambda look: look.target_epoch),
}


def reconcile(member: Member, state: GroupState, wanted: Wanted, reported: Reported) -> Member:
    """The member after its next step, or as it is. Raises KafkaError FENCED_MEMBER_EPOCH in an unknown state.

    `wanted` is its part of state's target, or less: it must not have topics that it no longer subscribes to.
    """
    target_epoch = state.target_epoch
    rule = RULES[member.state]
    look = _Look(member, target_epoch, wanted, reported)
    if not rule.may_go_on(look):
        return member
    kept, revoking = _split(member.assigned, wanted)
    if revoking and _owns_any(reported, revoking):
        epoch = rule.from_epoch(look)
        return replace(
            member, state=State.UNREVOKED_PARTITIONS, epoch=epoch, previous_epoch=member.epoch, assigned=kept,
            revoking=revoking,
        )  # fmt: skip
    given, unreleased = _give(member, state, wanted, kept)
    return replace(
        member, state=State.UNRELEASED_PARTITIONS if unreleased else State.STABLE, epoch=target_epoch,
        previous_epoch=member.epoch, assigned=given, revoking={},
    )  # fmt: skip


def _split(assigned: Owned, wanted: Wanted) -> tuple[Owned, Owned]:
    """What of the assigned partitions stays, and what goes."""
    kept: dict[bytes, dict[int, int]] = {}
    gone: dict[bytes, dict[int, int]] = {}
    for topic_id, epochs in assigned.items():
        wants = wanted.get(topic_id, frozenset())
        for partition, epoch in epochs.items():
            (kept if partition in wants else gone).setdefault(topic_id, {})[partition] = epoch
    return kept, gone


def _give(member: Member, state: GroupState, wanted: Wanted, kept: Owned) -> tuple[Owned, bool]:
    """What it keeps and all that is free, and whether others still have something of it.

    What the member itself has just given up is not free before that is written; it takes another step.
    """
    given = {topic_id: dict(epochs) for topic_id, epochs in kept.items()}
    unreleased = False
    for topic_id, partitions in wanted.items():
        has = kept.get(topic_id, {})
        for partition in sorted(partitions - has.keys()):
            if state.is_free(topic_id, partition):
                given.setdefault(topic_id, {})[partition] = state.target_epoch
            else:
                unreleased = True
    return given, unreleased
