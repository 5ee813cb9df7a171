"""Moving partitions to other replicas (KIP-455): what is written, and what follows, of each step.

The steps and their order are Apache Kafka's (KafkaController.onPartitionReassignment): the topic's node with all old
and new replicas; a leader epoch that tells the replicas; when the new ones are in sync, a leader among them; the old
ones out of the ISR, stopped and deleted; the topic's node as it ends. A topic's node says where a reassignment was to
lead, so the next controller takes it up. No I/O, like `decide` and `apply`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pybroker.controller import paths
from pybroker.controller.outcome import Outcome, Written, has_leader, take_state
from pybroker.controller.paths import LeaderAndIsr
from pybroker.controller.plan import Answer, Plan, Write, next_epoch, set_state, set_topic, without
from pybroker.controller.requests import TellMetadata, TellReplicas, TellStop
from pybroker.controller.state import (
    NO_LEADER,
    Assignment,
    ControllerState,
    LeadersNeeded,
    Partition,
    ReassignmentNodeDone,
    ReassignmentNodeRead,
    ReassignmentRequested,
    ReassignmentsCaughtUp,
    ReassignmentsDue,
    ReassignmentsEnded,
    ReplicaEvent,
    ReplicaStatus,
    ReplicasUnassigned,
)
from pybroker.controller.store import Delete, NoNode, SetData
from pybroker.protocol.errors import Errors
from pybroker.protocol.pace import Steps
from pybroker.protocol.types import TopicPartition

log = logging.getLogger("pybroker.controller")


def decide_requested(state: ControllerState, event: ReassignmentRequested) -> Steps[Plan]:
    plan = Plan([], {})
    changed: dict[str, dict[int, Assignment]] = {}
    for at, wanted in event.wanted.items():
        yield
        decided = _reassign(state, at, wanted, event.keep_factor)
        if isinstance(decided, Answer):
            plan.answers[at] = decided
        else:
            changed.setdefault(at.topic, {})[at.partition] = decided
    for name, assignments in changed.items():
        yield
        topic = state.topics[name]
        if any(topic.partitions[index].assignment != each for index, each in assignments.items()):
            plan.writes.append(set_topic(state, name, assignments))
    return plan


def apply_requested(
    state: ControllerState, event: ReassignmentRequested, written: Written, outcome: Outcome
) -> Steps[None]:
    begun: list[TopicPartition] = []
    dropped: dict[int, list[TopicPartition]] = {}
    for at, wanted in event.wanted.items():
        yield
        if at in outcome.answers:
            continue
        partition = state.partition(at)
        assert partition is not None
        failure = written.failed.get(paths.topic(at.topic))
        if failure is not None:
            outcome.answers[at] = Answer(Errors.UNKNOWN_SERVER_ERROR, f"The topic was not written: {failure}")
            continue
        decided = partition.assignment.moved_to(partition.assignment.origin if wanted is None else wanted)
        log.info("%s is reassigned from %s to %s", at, partition.assignment.origin, decided.target)
        for broker_id in partition.assign(decided):
            dropped.setdefault(broker_id, []).append(at)
        outcome.answers[at] = Answer(Errors.NONE)
        begun.append(at)
    over: list[TopicPartition] = []
    for at, answer in outcome.answers.items():
        by_node = state.asked_by_node.get(at) == event.wanted[at]
        if by_node and answer.error:
            log.warning("%s is not reassigned: %s", at, answer.message)
        if by_node == bool(answer.error):  # refused, or a later request takes precedence
            over.append(at)
    node_done(state, outcome, over)
    _unassign(dropped, outcome)
    if begun:
        outcome.events.append(ReassignmentsDue(tuple(begun), begin=True))


def _reassign(
    state: ControllerState, at: TopicPartition, wanted: tuple[int, ...] | None, keep_factor: bool
) -> Assignment | Answer:
    partition = state.partition(at)
    before = Assignment([], [], []) if partition is None else partition.assignment
    if wanted is not None:
        complaint = _check_replicas(state, before, list(wanted))
        if complaint is not None:
            return Answer(Errors.INVALID_REPLICA_ASSIGNMENT, complaint)
    elif partition is None or not partition.reassigning:
        return Answer(Errors.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    if partition is None or at.topic in state.deletions:
        return Answer(Errors.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if keep_factor and wanted is not None and len(wanted) != len(before.target):
        change = f"from {len(before.target)} to {len(wanted)}"
        return Answer(Errors.INVALID_REPLICATION_FACTOR, f"The replication factor is changed {change}")
    decided = before.moved_to(before.origin if wanted is None else wanted)
    isr = partition.state.isr if partition.state else ()
    if isr and not set(isr) & set(decided.replicas):
        # Apache Kafka would delete what may be the only copies.
        return Answer(Errors.INVALID_REPLICA_ASSIGNMENT, "None of the replicas that would be left is in sync.")
    return decided


def _check_replicas(state: ControllerState, before: Assignment, wanted: list[int]) -> str | None:
    if not wanted:
        return "Empty replica list specified in partition reassignment."
    if len(set(wanted)) != len(wanted):
        return f"Duplicate replica ids in partition reassignment replica list: {_as_scala(wanted)}"
    if min(wanted) < 0:
        return f"Invalid broker id in replica list: {_as_scala(wanted)}"
    adding = before.moved_to(wanted).adding
    live = sorted(set(state.brokers) - state.leaving)
    if not set(adding) <= set(live):
        names = ", ".join(map(str, live))
        return (
            f"Replica assignment has brokers that are not alive. Replica list: {_as_scala(adding)}, "
            f"live broker list: Set({names})"
        )
    return None


def _as_scala(ids: Iterable[int]) -> str:
    return f"ArrayBuffer({', '.join(map(str, ids))})"


def _is_caught_up(state: ControllerState, partition: Partition) -> bool:
    """Whether all replicas that stay are in sync, and one of them can lead."""
    current = partition.state
    if current is None:
        return False
    target = partition.assignment.target
    in_sync = not partition.reassigning or set(target) <= set(current.isr)
    return in_sync and _leader(state, partition, current) is not None


def _leader(state: ControllerState, partition: Partition, current: LeaderAndIsr) -> int | None:
    """The present leader if it stays, else the first of those that stay that can."""
    target = partition.assignment.target
    for broker_id in (current.leader, *target):
        if broker_id in target and broker_id in current.isr and state.is_online(broker_id, partition.at):
            return broker_id
    return None


def decide_due(state: ControllerState, event: ReassignmentsDue) -> Steps[Plan]:
    plan = Plan([], {})
    for at, partition, current in _known(state, event.partitions):
        yield
        if event.begin and not _is_caught_up(state, partition):
            new = next_epoch(state, current, current.leader, current.isr, current.recovering)
            plan.writes.append(set_state(at, new))
    return plan


def apply_due(state: ControllerState, event: ReassignmentsDue, written: Written, outcome: Outcome) -> Steps[None]:
    new: set[tuple[TopicPartition, int]] = set()
    for at, state_now in written.states:
        yield
        take_state(state, at, state_now)
        partition = state.partition(at)
        assert partition is not None
        for broker_id in partition.replicas:
            if partition.replica_statuses[broker_id] is ReplicaStatus.NEW:
                new.add((at, broker_id))
            if state.is_online(broker_id, at):
                partition.replica_happened(broker_id, ReplicaEvent.TOLD)
    told = tuple(at for at, _ in written.states)
    if told:
        outcome.notices += [TellReplicas(told, new=frozenset(new)), TellMetadata(told)]
    caught_up = tuple(at for at, partition, _ in _known(state, event.partitions) if _is_caught_up(state, partition))
    if caught_up:
        outcome.events.append(ReassignmentsCaughtUp(caught_up))
    if outcome.reread:
        outcome.retry = ReassignmentsDue(tuple(outcome.reread), event.begin)


def decide_caught_up(state: ControllerState, event: ReassignmentsCaughtUp) -> Steps[Plan]:
    plan = Plan([], {})
    for at, partition, current in _known(state, event.partitions):
        yield
        leader = _leader(state, partition, current)
        if leader is not None:
            plan.writes.append(set_state(at, next_epoch(state, current, leader, current.isr, current.recovering)))
    return plan


def apply_caught_up(
    state: ControllerState, event: ReassignmentsCaughtUp, written: Written, outcome: Outcome
) -> Steps[None]:
    dropped: dict[int, list[TopicPartition]] = {}
    for at, new in written.states:
        yield
        partition = state.partition(at)
        assert partition is not None
        for broker_id in partition.assign(Assignment(partition.assignment.target, [], [])):
            dropped.setdefault(broker_id, []).append(at)
        has_leader(state, partition, new)
    done = tuple(at for at, _ in written.states)
    outcome.tell(done, moved=True)
    _unassign(dropped, outcome)
    if done:
        outcome.events.append(ReassignmentsEnded(done))
    if outcome.reread:
        outcome.retry = ReassignmentsDue(tuple(outcome.reread))


def _unassign(dropped: dict[int, list[TopicPartition]], outcome: Outcome) -> None:
    for broker_id, at in sorted(dropped.items()):
        outcome.events.append(ReplicasUnassigned(broker_id, tuple(at)))


def decide_unassigned(state: ControllerState, event: ReplicasUnassigned) -> Steps[Plan]:
    kept = (at for at in _still_unassigned(state, event) if at.topic not in state.deletions)
    return Plan((yield from without(state, event.broker_id, kept, {})), {})


def _still_unassigned(state: ControllerState, event: ReplicasUnassigned) -> list[TopicPartition]:
    """Another move may have brought the broker back, where this was put off."""
    found = ((at, state.partition(at)) for at in event.partitions)
    return [at for at, partition in found if partition is None or event.broker_id not in partition.replicas]


def apply_unassigned(
    state: ControllerState, event: ReplicasUnassigned, written: Written, outcome: Outcome
) -> Steps[None]:
    leaderless = []
    for at, new in written.states:
        yield
        take_state(state, at, new)
        if new.leader == NO_LEADER:
            leaderless.append(at)
    outcome.tell(at for at, _ in written.states)
    if leaderless:  # a move that was replaced by another one has dropped the leader that it had brought
        outcome.events.append(LeadersNeeded(tuple(leaderless)))
    gone = tuple(at for at in _still_unassigned(state, event) if at not in written.refused)
    if gone and state.is_live(event.broker_id):
        raised = frozenset(at for at, _ in written.states)
        outcome.notices += [TellStop(event.broker_id, gone, False, raised), TellStop(event.broker_id, gone, True)]
    if outcome.reread:
        outcome.retry = ReplicasUnassigned(event.broker_id, tuple(outcome.reread))


def decide_ended(state: ControllerState, event: ReassignmentsEnded) -> Steps[Plan]:
    names = dict.fromkeys(at.topic for at in event.partitions)
    yield
    return Plan([set_topic(state, name, {}) for name in names if name in state.topics], {})


def apply_ended(state: ControllerState, event: ReassignmentsEnded, written: Written, outcome: Outcome) -> Steps[None]:
    for at, partition, _ in _known(state, event.partitions):
        yield
        log.info("%s has its replicas at %s", at, partition.replicas)
    for path, error in written.failed.items():
        log.error("%s was not written after a reassignment: %s", path, error)
    outcome.notices.append(TellMetadata(event.partitions))
    node_done(state, outcome, event.partitions)


# The node of the old tools


def apply_node_read(
    state: ControllerState, event: ReassignmentNodeRead, written: Written, outcome: Outcome
) -> Steps[None]:
    """What is new in it is asked for as by a request; what an earlier controller has begun goes on by itself."""
    wanted: dict[TopicPartition, tuple[int, ...] | None] = {}
    for at, replicas in event.wanted.items():
        yield
        partition = state.partition(at)
        under_way = partition is not None and partition.reassigning and partition.assignment.target == list(replicas)
        if state.asked_by_node.get(at) != replicas and not under_way:
            wanted[at] = replicas
    state.asked_by_node = dict(event.wanted)
    if wanted:
        outcome.events.append(ReassignmentRequested(wanted))
    elif not event.wanted:
        outcome.events.append(ReassignmentNodeDone(()))


def decide_node_done(state: ControllerState, event: ReassignmentNodeDone) -> Steps[Plan]:
    yield
    left = _left_in_node(state, event)
    if event.partitions and left == state.asked_by_node:
        return Plan([], {})
    path = paths.REASSIGN_PARTITIONS
    return Plan([Write(SetData(path, paths.encode_reassignments(left)) if left else Delete(path))], {})


def apply_node_done(
    state: ControllerState, event: ReassignmentNodeDone, written: Written, outcome: Outcome
) -> Steps[None]:
    yield
    state.asked_by_node = _left_in_node(state, event)
    for path, error in written.failed.items():
        if not isinstance(error, NoNode):
            log.error("%s was not brought up to date: %s", path, error)


def _left_in_node(state: ControllerState, event: ReassignmentNodeDone) -> dict[TopicPartition, tuple[int, ...]]:
    return {at: replicas for at, replicas in state.asked_by_node.items() if at not in event.partitions}


def node_done(state: ControllerState, outcome: Outcome, partitions: Iterable[TopicPartition]) -> None:
    """/admin/reassign_partitions need not name these any more, if it does."""
    gone = tuple(at for at in partitions if at in state.asked_by_node)
    if gone:
        outcome.events.append(ReassignmentNodeDone(gone))


def _known(
    state: ControllerState, wanted: Iterable[TopicPartition]
) -> Iterable[tuple[TopicPartition, Partition, LeaderAndIsr]]:
    for at in wanted:
        partition = state.partition(at)
        if partition is not None and partition.state is not None and at.topic not in state.deletions:
            yield at, partition, partition.state
