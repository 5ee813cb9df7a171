from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pybroker.controller.assignment import alternate_racks, assign_replicas
from pybroker.protocol.errors import Errors, KafkaError


def unracked(*brokers: int) -> dict[int, str | None]:
    return dict.fromkeys(brokers)


def test_kafkas_documented_example() -> None:
    # The table in the comment of Kafka's AdminUtils: five brokers, ten partitions, three replicas, start 0.
    assert assign_replicas(unracked(0, 1, 2, 3, 4), 10, 3, random=Random(), fixed_start=0) == {
        0: [0, 1, 2], 1: [1, 2, 3], 2: [2, 3, 4], 3: [3, 4, 0], 4: [4, 0, 1],
        5: [0, 2, 3], 6: [1, 3, 4], 7: [2, 4, 0], 8: [3, 0, 1], 9: [4, 1, 2],
    }  # fmt: skip


def test_added_partitions_go_on_where_the_topic_began() -> None:
    whole = assign_replicas(unracked(0, 1, 2, 3), 9, 2, random=Random(), fixed_start=0)
    added = assign_replicas(unracked(0, 1, 2, 3), 3, 2, random=Random(), fixed_start=0, first_partition=6)
    assert list(added) == [6, 7, 8]
    assert [replicas[0] for replicas in added.values()] == [whole[p][0] for p in added]


def test_racks_alternate() -> None:
    assert alternate_racks({0: "a", 1: "a", 2: "b", 3: "c"}) == [0, 2, 3, 1]
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternate_racks(racks) == [0, 3, 1, 5, 4, 2]


@pytest.mark.parametrize("seed", range(5))
def test_every_partition_has_a_replica_in_every_rack(seed: int) -> None:
    racks: dict[int, str | None] = {0: "a", 1: "b", 2: "b", 3: "c", 4: "c", 5: "a"}
    assignment = assign_replicas(racks, 36, 3, random=Random(seed))
    assert all(len({racks[b] for b in replicas}) == 3 for replicas in assignment.values())
    assert set(Counter(replicas[0] for replicas in assignment.values()).values()) == {6}


@pytest.mark.parametrize("seed", range(5))
def test_more_replicas_than_racks_and_uneven_racks(seed: int) -> None:
    racks: dict[int, str | None] = {0: "a", 1: "a", 2: "a", 3: "b"}
    for replicas in assign_replicas(racks, 12, 3, random=Random(seed)).values():
        assert len(set(replicas)) == 3
        assert {racks[b] for b in replicas} == {"a", "b"}


@pytest.mark.parametrize("seed", range(5))
def test_leaders_are_even_without_racks(seed: int) -> None:
    assignment = assign_replicas(unracked(3, 5, 9), 12, 2, random=Random(seed))
    assert Counter(replicas[0] for replicas in assignment.values()) == {3: 4, 5: 4, 9: 4}
    assert all(len(set(replicas)) == 2 for replicas in assignment.values())


def test_one_broker() -> None:
    assert assign_replicas(unracked(5), 2, 1, random=Random()) == {0: [5], 1: [5]}


@pytest.mark.parametrize(
    ("racks", "partitions", "factor", "code", "message"),
    [
        ({5: None}, 0, 1, Errors.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
        ({5: None}, 1, 0, Errors.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."),
        ({5: None}, 1, 3, Errors.INVALID_REPLICATION_FACTOR, "Replication factor: 3 larger than available brokers: 1."),
        ({}, 1, 1, Errors.INVALID_REPLICATION_FACTOR, "Replication factor: 1 larger than available brokers: 0."),
        ({1: "a", 2: None}, 1, 1, Errors.UNKNOWN_SERVER_ERROR, "Not all brokers have rack information"),
    ],
)
def test_refusals(racks: dict[int, str | None], partitions: int, factor: int, code: Errors, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        assign_replicas(racks, partitions, factor, random=Random())
    assert refused.value.code == code
    assert str(refused.value.message).startswith(message)
