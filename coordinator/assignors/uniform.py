"""The uniform assignor: all members have the same number of partitions, or one more, and keep what they can.

Where all subscribe to the same topics that is a matter of counting: everyone keeps up to the even share, and what is
left over fills those below it. Otherwise see uniform_mixed. Kafka: UniformAssignor; which of several equally good
divisions it finds may differ from ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from pybroker.coordinator.assignors.spec import Subscriber, Target
from pybroker.coordinator.assignors.uniform_mixed import assign_mixed


def assign_uniformly(members: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> Target:
    """See the module's text."""
    if len({member.topics for member in members.values()}) > 1:
        return assign_mixed(members, partitions)
    return _assign_alike(members, partitions)


def _assign_alike(members: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> Target:
    free = {(topic_id, number) for topic_id, count in partitions.items() for number in range(count)}
    share, rest = divmod(len(free), max(len(members), 1))
    # Those who have most come first, so that the remainder stays with them and fewer partitions move.
    held = {member_id: [each for each in _pairs(member) if each in free] for member_id, member in members.items()}
    kept: dict[str, list[tuple[bytes, int]]] = {}
    missing: list[tuple[str, int]] = []
    for number, member_id in enumerate(sorted(held, key=lambda each: (-len(held[each]), each))):
        quota = share + (number < rest)
        mine = kept[member_id] = [each for each in held[member_id] if each in free][:quota]
        free.difference_update(mine)
        if len(mine) < quota:
            missing.append((member_id, quota - len(mine)))
    left = iter(sorted(free))
    for member_id, count in missing:
        kept[member_id] += islice(left, count)
    return {member_id: grouped(pairs) for member_id, pairs in kept.items()}


def _pairs(member: Subscriber) -> list[tuple[bytes, int]]:
    return sorted((topic_id, number) for topic_id, numbers in member.assigned.items() for number in numbers)


def grouped(pairs: list[tuple[bytes, int]]) -> dict[bytes, frozenset[int]]:
    """Partitions by their topic."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in pairs:
        topics.setdefault(topic_id, []).append(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}
