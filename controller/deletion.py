"""What follows when topics are deleted: marked, stopped and deleted at every broker, then their nodes go.

Applied by `apply`; what is written is `decide`'s to say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pybroker.controller import reassignments
from pybroker.controller.decide import replicas_to_delete
from pybroker.controller.outcome import Outcome, Written, take_state
from pybroker.controller.requests import TellMetadata, TellStop
from pybroker.controller.state import (
    ControllerState,
    DeletionConfirmed,
    DeletionsRequested,
    DeletionStarted,
    PartitionEvent,
    PartitionStatus,
    ReplicaEvent,
    ReplicasDeleted,
    ReplicaStatus,
)
from pybroker.controller.store import NoNode
from pybroker.protocol.pace import Steps
from pybroker.protocol.types import TopicPartition

log = logging.getLogger("pybroker.controller")


def apply_requested(
    state: ControllerState, event: DeletionsRequested, written: Written, outcome: Outcome
) -> Steps[None]:
    yield
    names = tuple(name for name in event.names if name in state.topics and name not in state.deletions)
    if not names:
        return
    state.deletions.update(names)
    outcome.notices.append(TellMetadata(_partitions_of(state, names)))
    outcome.events.append(DeletionStarted(names))


def apply_started(
    state: ControllerState, event: DeletionStarted, written: Written, outcome: Outcome
) -> Steps[None]:
    outcome.reread.clear()  # whatever the states are now, the topics go
    by_broker = replicas_to_delete(state, event.names)
    for at, new in written.states:
        yield
        take_state(state, at, new)
    for broker_id, at_broker in by_broker.items():
        live = state.is_live(broker_id)
        for at in at_broker:
            yield
            partition = state.partition(at)
            assert partition is not None
            partition.replica_happened(broker_id, ReplicaEvent.STOPPED)
            partition.replica_happened(broker_id, ReplicaEvent.DELETE_SENT if live else ReplicaEvent.DELETE_FAILED)
        if not live:
            log.info("%d partitions wait for broker %d to be deleted", len(at_broker), broker_id)
    for delete in (False, True):
        outcome.notices += [
            TellStop(broker_id, tuple(at), delete) for broker_id, at in by_broker.items() if state.is_live(broker_id)
        ]


def apply_replicas_deleted(
    state: ControllerState, event: ReplicasDeleted, written: Written, outcome: Outcome
) -> Steps[None]:
    touched: dict[str, None] = {}
    for found, what in (
        (event.deleted, ReplicaEvent.DELETE_CONFIRMED),
        (event.failed, ReplicaEvent.DELETE_FAILED),
    ):
        for at in found:
            yield
            partition = state.partition(at)
            if partition is not None and at.topic in state.deletions:
                partition.replica_happened(event.broker_id, what)
                touched[at.topic] = None
    for at in event.failed:
        log.warning("broker %d did not delete %s; it is tried again when the broker comes back", event.broker_id, at)
    for name in touched:
        statuses = [each.replica_statuses.values() for each in state.topics[name].partitions.values()]
        if all(status is ReplicaStatus.DELETED for each in statuses for status in each):
            outcome.events.append(DeletionConfirmed(name))


def apply_confirmed(
    state: ControllerState, event: DeletionConfirmed, written: Written, outcome: Outcome
) -> Steps[None]:
    yield
    failed = [error for error in written.failed.values() if not isinstance(error, NoNode)]
    if failed:
        log.error("the nodes of the deleted topic %s could not be removed: %s", event.name, failed[0])
        return
    topic = state.topics.pop(event.name, None)
    for partition in topic.partitions.values() if topic else ():
        if partition.status is PartitionStatus.OFFLINE:
            partition.happened(PartitionEvent.DELETED)
    state.deletions.discard(event.name)
    reassignments.node_done(state, outcome, [at for at in state.asked_by_node if at.topic == event.name])
    log.info("topic %s is deleted", event.name)


def _partitions_of(state: ControllerState, names: Iterable[str]) -> tuple[TopicPartition, ...]:
    topics = (state.topics[name] for name in names)
    return tuple(partition.at for topic in topics for partition in topic.partitions.values())
