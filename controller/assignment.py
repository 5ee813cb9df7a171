"""Which brokers get the replicas of new partitions: Kafka's algorithm (org.apache.kafka.admin.AdminUtils, KIP-36).

Without racks: first replicas go round the brokers from a random start, the others follow at a distance that grows by
one each time the brokers have all been used, so that two brokers do not share all of their partitions. With racks: the
same over the brokers ordered rack by rack in turn, skipping brokers until every rack has a replica.

Pure: the random source is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from pybroker.protocol.errors import Errors, KafkaError

Assignment = dict[int, list[int]]


def assign_replicas(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    random: Random,
    fixed_start: int = -1,
    first_partition: int = 0,
) -> Assignment:
    """Replicas of `partitions` new partitions, numbered from `first_partition`. `racks` is broker id -> rack.

    `fixed_start` is the index of the broker to start with (partitions added to a topic go on where it began).
    Raises KafkaError INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, or UNKNOWN_SERVER_ERROR when only some brokers
    have a rack.
    """
    if partitions <= 0:
        raise KafkaError(Errors.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise KafkaError(Errors.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(racks):
        raise KafkaError(
            Errors.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: {len(racks)}.",
        )
    with_rack = {broker: rack for broker, rack in racks.items() if rack is not None}
    if with_rack and len(with_rack) < len(racks):
        raise KafkaError(
            Errors.UNKNOWN_SERVER_ERROR, "Not all brokers have rack information for replica rack aware assignment."
        )
    brokers = alternate_racks(with_rack) if with_rack else sorted(racks)
    start = fixed_start if fixed_start >= 0 else random.randrange(len(brokers))
    shift = fixed_start if fixed_start >= 0 else random.randrange(len(brokers))
    assignment: Assignment = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(brokers) == 0:
            shift += 1
        first = (partition + start) % len(brokers)
        if with_rack:
            assignment[partition] = _spread_over_racks(brokers, with_rack, first, shift, replication_factor)
        else:
            followers = (_follower(first, shift, n, len(brokers)) for n in range(replication_factor - 1))
            assignment[partition] = [brokers[first], *(brokers[index] for index in followers)]
    return assignment


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """The brokers, one of each rack in turn: {0: a, 1: a, 2: b, 3: c} -> [0, 2, 3, 1]."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _follower(first: int, shift: int, n: int, brokers: int) -> int:
    return (first + 1 + (shift + n) % (brokers - 1)) % brokers


def _spread_over_racks(
    brokers: Sequence[int], racks: Mapping[int, str], first: int, shift: int, replication_factor: int
) -> list[int]:
    rack_count = len(set(racks.values()))
    replicas = [brokers[first]]
    used = {racks[brokers[first]]}
    step = 0
    while len(replicas) < replication_factor:
        broker = brokers[_follower(first, shift * rack_count, step, len(brokers))]
        step += 1
        if broker in replicas or (racks[broker] in used and len(used) < rack_count):
            continue
        replicas.append(broker)
        used.add(racks[broker])
    return replicas
