"""The range assignor: every subscriber of a topic gets a run of neighbouring partitions, the first ones one more where
the division leaves a remainder.

Members go by their instance id, then those without one by their member id: so with static members the same partitions
of several topics (joined by their keys) always meet in one member. Result for 2 topics of 3 partitions: A has 0 and 1
of both, B has 2 of both. Kafka: RangeAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.coordinator.assignors.spec import Subscriber, Target


def assign_ranges(members: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> Target:
    """See the module's text."""
    order = sorted(members, key=lambda member_id: _place(member_id, members[member_id]))
    target: Target = {member_id: {} for member_id in order}
    for topic_id, count in partitions.items():
        subscribers = [member_id for member_id in order if topic_id in members[member_id].topics]
        if not subscribers:
            continue
        share, rest = divmod(count, len(subscribers))
        start = 0
        for number, member_id in enumerate(subscribers):
            end = start + share + (number < rest)
            if start < end:
                target[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return target


def _place(member_id: str, member: Subscriber) -> tuple[bool, str]:
    return (True, member_id) if member.instance_id is None else (False, member.instance_id)
