"""What an assignor is given and gives: a pure function of the members, with what they subscribe to and have now, and of
the number of partitions of every topic that somebody subscribes to. Racks are not looked at, as in Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

Partitions = Mapping[bytes, Collection[int]]  # topic id → its partitions
Target = dict[str, dict[bytes, frozenset[int]]]  # member id → what it shall have


class Subscriber(NamedTuple):
    """One member. `topics` are ids of topics that exist; `assigned` is its present target."""

    instance_id: str | None
    topics: frozenset[bytes]
    assigned: Partitions


Assignor = Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], Target]
