"""Uniform assignment where members subscribe to different topics, so that an even share for everyone may not exist.

1. Everyone keeps what it has and still subscribes to.
2. What is free goes, topic by topic, to the subscriber with the fewest partitions.
3. Topic by topic partitions move from the fullest to the emptiest of its subscribers, as long as that brings them
   closer. Topics influence each other, hence several rounds; after ROUNDS it is good enough.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from pybroker.coordinator.assignors.spec import Subscriber, Target

ROUNDS = 16


class _Division:
    """Who has what of which topic, and how many partitions everyone has in all."""

    def __init__(self, members: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> None:
        self.subscribers = {
            topic_id: sorted(member_id for member_id, member in members.items() if topic_id in member.topics)
            for topic_id in partitions
        }
        # Few subscribers first: those partitions have the fewest places to go to.
        self.topics = sorted(partitions, key=lambda each: (len(self.subscribers[each]), each))
        self.has: dict[bytes, dict[str, set[int]]] = {
            topic_id: {member_id: set() for member_id in who} for topic_id, who in self.subscribers.items()
        }
        self.total = dict.fromkeys(members, 0)

    def keep(self, members: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> dict[bytes, set[int]]:
        """Everyone keeps its own; returns what is free."""
        free = {topic_id: set(range(count)) for topic_id, count in partitions.items()}
        for member_id in sorted(members):
            member = members[member_id]
            for topic_id, numbers in member.assigned.items():
                if topic_id in member.topics and topic_id in free:
                    mine = free[topic_id].intersection(numbers)
                    free[topic_id] -= mine
                    self.has[topic_id][member_id] |= mine
                    self.total[member_id] += len(mine)
        return free

    def hand_out(self, topic_id: bytes, free: set[int]) -> None:
        emptiest = [(self.total[member_id], member_id) for member_id in self.subscribers[topic_id]]
        if not emptiest:
            return
        heapq.heapify(emptiest)
        for number in sorted(free):
            count, member_id = emptiest[0]
            self.has[topic_id][member_id].add(number)
            self.total[member_id] = count + 1
            heapq.heapreplace(emptiest, (count + 1, member_id))

    def level(self, topic_id: bytes) -> bool:
        """Move partitions of one topic to where there are few; whether any was moved."""
        mine = self.has[topic_id]
        emptiest = [(self.total[member_id], member_id) for member_id in mine]
        fullest = [(-self.total[member_id], member_id) for member_id, numbers in mine.items() if numbers]
        heapq.heapify(emptiest)
        heapq.heapify(fullest)
        moved = False
        while fullest:
            count, giver = -fullest[0][0], fullest[0][1]
            low, taker = emptiest[0]
            if low != self.total[taker]:
                heapq.heapreplace(emptiest, (self.total[taker], taker))
            elif count - low < 2:
                break
            else:
                number = max(mine[giver])
                mine[giver].remove(number)
                mine[taker].add(number)
                self.total[giver] -= 1
                self.total[taker] += 1
                moved = True
                heapq.heapreplace(emptiest, (low + 1, taker))
                if mine[giver]:
                    heapq.heapreplace(fullest, (1 - count, giver))
                else:
                    heapq.heappop(fullest)
        return moved


def assign_mixed(members: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> Target:
    """See the module's text."""
    division = _Division(members, partitions)
    free = division.keep(members, partitions)
    for topic_id in division.topics:
        division.hand_out(topic_id, free[topic_id])
    for _ in range(ROUNDS):
        moves = [division.level(topic_id) for topic_id in division.topics]
        if not any(moves):
            break
    return {
        member_id: {topic_id: frozenset(has[member_id]) for topic_id, has in division.has.items() if has.get(member_id)}
        for member_id in members
    }
