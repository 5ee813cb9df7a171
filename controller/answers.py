"""What brokers' answers say of the partitions they were told of."""

from __future__ import annotations

from typing import NamedTuple

from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from pybroker.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID

Partitions = tuple[TopicPartition, ...]


class Results(NamedTuple):
    """Partitions where it was done, and those where it failed."""

    done: Partitions
    failed: Partitions


def deletions(request: StopReplicaRequest, response: StopReplicaResponse) -> Results:
    """Of the partitions that the request asked to delete: those deleted and those not."""
    errors = {(each.topic_name, each.partition_index): each.error_code for each in response.partition_errors}
    deleted: list[TopicPartition] = []
    failed: list[TopicPartition] = []
    for topic in request.topic_states:
        for partition in topic.partition_states:
            if partition.delete_partition:
                at = TopicPartition(topic.topic_name, partition.partition_index)
                (failed if response.error_code or errors.get(at) else deleted).append(at)
    return Results(tuple(deleted), tuple(failed))


def servings(request: LeaderAndIsrRequest, response: LeaderAndIsrResponse) -> Results:
    """Partitions that the broker serves, and those in a failed log directory. Answers up to version 4 name them, later
    ones give topic ids; topics without one come in the request's order, as only this broker itself answers so."""
    names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
    without_id = iter([topic.topic_name for topic in request.topic_states if topic.topic_id == ZERO_UUID])
    errors = [(each.topic_name, each) for each in response.partition_errors]
    for topic in response.topics:
        name = next(without_id, "") if topic.topic_id == ZERO_UUID else names.get(topic.topic_id, "")
        errors += [(name, each) for each in topic.partition_errors]
    by_error: dict[int, list[TopicPartition]] = {}
    for name, each in errors:
        by_error.setdefault(each.error_code, []).append(TopicPartition(name, each.partition_index))
    return Results(tuple(by_error.get(Errors.NONE, ())), tuple(by_error.get(Errors.KAFKA_STORAGE_ERROR, ())))
