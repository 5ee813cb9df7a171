"""The assignors: what each of them promises, on examples and on random groups."""

from __future__ import annotations

import random

import pytest

from pybroker.coordinator.assignors.range_ import assign_ranges
from pybroker.coordinator.assignors.spec import Assignor, Subscriber, Target
from pybroker.coordinator.assignors.table import ASSIGNORS
from pybroker.coordinator.assignors.uniform import assign_uniformly

T, U, V = b"t" * 16, b"u" * 16, b"v" * 16


def member(topics: bytes | list[bytes], instance_id: str | None = None, **assigned: list[int]) -> Subscriber:
    names = {"t": T, "u": U, "v": V}
    wanted = frozenset([topics] if isinstance(topics, bytes) else topics)
    return Subscriber(instance_id, wanted, {names[name]: numbers for name, numbers in assigned.items()})


def shown(target: Target) -> dict[str, dict[str, list[int]]]:
    return {
        who: {topic[:1].decode(): sorted(numbers) for topic, numbers in topics.items()}
        for who, topics in target.items()
    }


def test_ranges_lie_side_by_side() -> None:
    members = {"a": member([T, U]), "b": member([T, U])}
    assert shown(assign_ranges(members, {T: 3, U: 3})) == {
        "a": {"t": [0, 1], "u": [0, 1]},
        "b": {"t": [2], "u": [2]},
    }


def test_ranges_go_by_instance_ids_first() -> None:
    members = {"a": member(T), "b": member(T, "i2"), "c": member(T, "i1")}
    assert shown(assign_ranges(members, {T: 2})) == {"a": {}, "b": {"t": [1]}, "c": {"t": [0]}}


def test_a_new_member_takes_only_what_is_too_much_elsewhere() -> None:
    members = {"a": member(T, t=[0, 1]), "b": member(T, t=[2, 3]), "0": member(T)}
    assert shown(assign_uniformly(members, {T: 4})) == {"0": {"t": [3]}, "a": {"t": [0, 1]}, "b": {"t": [2]}}


def test_new_partitions_fill_up() -> None:
    members = {"a": member([T, U], t=[0, 1]), "b": member([T, U], t=[2])}
    assert shown(assign_uniformly(members, {T: 3, U: 3})) == {
        "a": {"t": [0, 1], "u": [0]},
        "b": {"t": [2], "u": [1, 2]},
    }


def test_different_subscriptions_are_balanced() -> None:
    members = {"a": member([T, U], t=[0, 1, 2]), "b": member(T), "c": member(U)}
    assert shown(assign_uniformly(members, {T: 3, U: 3})) == {
        "a": {"t": [0, 1]},
        "b": {"t": [2]},
        "c": {"u": [0, 1, 2]},
    }


def test_nobody_and_nothing() -> None:
    for assign in ASSIGNORS.values():
        assert assign({}, {}) == {}
        assert assign({"a": member([])}, {}) == {"a": {}}


def sizes(target: Target) -> list[int]:
    return sorted(sum(len(numbers) for numbers in topics.values()) for topics in target.values())


def random_group(rng: random.Random) -> tuple[dict[str, Subscriber], dict[bytes, int]]:
    topics = {bytes([number]) * 16: rng.randint(1, 9) for number in range(rng.randint(1, 5))}
    alike = rng.random() < 0.4
    everything = frozenset(topics)
    members = {}
    for number in range(rng.randint(1, 7)):
        some = frozenset(rng.sample(sorted(topics), rng.randint(1, len(topics))))
        instance_id = f"i{number}" if rng.random() < 0.3 else None
        members[f"m{rng.randint(0, 999)}"] = Subscriber(instance_id, everything if alike else some, {})
    subscribed = {topic for each in members.values() for topic in each.topics}
    return members, {topic: count for topic, count in topics.items() if topic in subscribed}


def check(members: dict[str, Subscriber], partitions: dict[bytes, int], target: Target) -> None:
    """Everyone has an answer, every partition one owner, who subscribes to it."""
    assert target.keys() == members.keys()
    owned = [(topic, number) for topics in target.values() for topic, numbers in topics.items() for number in numbers]
    assert sorted(owned) == sorted((topic, number) for topic, count in partitions.items() for number in range(count))
    for who, topics in target.items():
        assert topics.keys() <= members[who].topics
        assert all(topics.values())


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@pytest.mark.parametrize("seed", range(60))
def test_random_groups(assign: Assignor, seed: int) -> None:
    rng = random.Random(seed)
    members, partitions = random_group(rng)
    for _ in range(6):
        target = assign(members, partitions)
        check(members, partitions, target)
        settled = {who: each._replace(assigned=target[who]) for who, each in members.items()}
        if assign is assign_uniformly:
            assert assign(settled, partitions) == target, "a balanced group stays as it is"
            if len({each.topics for each in members.values()}) == 1:
                assert max(sizes(target)) - min(sizes(target)) <= 1
        members = dict(settled)
        match rng.randint(0, 2):
            case 0 if len(members) > 1:
                del members[rng.choice(sorted(members))]
            case 1:
                members[f"n{rng.randint(0, 999)}"] = Subscriber(None, next(iter(members.values())).topics, {})
            case _:
                topic = rng.choice(sorted(partitions))
                partitions[topic] += 2
        subscribed = {topic for each in members.values() for topic in each.topics}
        partitions = {topic: count for topic, count in partitions.items() if topic in subscribed}


@pytest.mark.parametrize("seed", range(40))
def test_mixed_subscriptions_leave_nothing_to_move(seed: int) -> None:
    """No partition could move to a subscriber that has two fewer."""
    members, partitions = random_group(random.Random(seed))
    target = assign_uniformly(members, partitions)
    total = {who: sum(len(numbers) for numbers in topics.values()) for who, topics in target.items()}
    for who, topics in target.items():
        for topic in topics:
            emptiest = min(total[other] for other, each in members.items() if topic in each.topics)
            assert total[who] - emptiest <= 1


@pytest.mark.parametrize("seed", range(40))
def test_uniform_moves_no_more_than_it_must(seed: int) -> None:
    """When a member goes, those who stay keep all that they have."""
    rng = random.Random(seed)
    members = {f"m{number}": member([T, U]) for number in range(rng.randint(2, 6))}
    partitions = {T: rng.randint(1, 12), U: rng.randint(1, 12)}
    before = assign_uniformly(members, partitions)
    gone = rng.choice(sorted(members))
    members = {who: each._replace(assigned=before[who]) for who, each in members.items() if who != gone}
    after = assign_uniformly(members, partitions)
    for who in members:
        for topic, numbers in before[who].items():
            assert numbers <= after[who].get(topic, frozenset())
