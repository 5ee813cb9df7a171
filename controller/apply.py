"""What follows from an event once its writes are done: `apply(state, event, plan, results)` changes the state (the only
place that does) and returns what brokers are to be told and which events come next. No I/O.

A write may have been refused for one partition and not for another: only what was written changes the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from pybroker.controller import deletion, reassignments
from pybroker.controller.decide import replicas_to_delete
from pybroker.controller.outcome import Outcome, WriteResult, Written, has_leader, take_state
from pybroker.controller.paths import LeaderAndIsr
from pybroker.controller.plan import Answer, Plan
from pybroker.controller.requests import TellMetadata, TellReplicas, TellStop
from pybroker.controller.state import (
    BrokerCame,
    BrokersChanged,
    ControllerState,
    DeletionConfirmed,
    DeletionsRequested,
    DeletionStarted,
    Elected,
    ElectionRequested,
    Event,
    IsrProposed,
    IsrsChanged,
    LeadersNeeded,
    LeadersUnbalanced,
    LogDirsFailed,
    Partition,
    PartitionEvent,
    PartitionStatus,
    ReassignmentNodeDone,
    ReassignmentNodeRead,
    ReassignmentRequested,
    ReassignmentsCaughtUp,
    ReassignmentsDue,
    ReassignmentsEnded,
    ReplicaEvent,
    ReplicasAnswered,
    ReplicasDeleted,
    ReplicasStarted,
    ReplicasStopped,
    ReplicasUnassigned,
    ShutdownAnnounced,
    StatesRead,
    Topic,
    TopicChanged,
    TopicsChanged,
    UncleanAllowed,
)
from pybroker.controller.store import NoNode, StoreError
from pybroker.protocol.errors import Errors
from pybroker.protocol.pace import Steps
from pybroker.protocol.types import TopicPartition

log = logging.getLogger("pybroker.controller")


def apply(state: ControllerState, event: Event, plan: Plan, results: list[WriteResult]) -> Steps[Outcome]:
    """`results` stand in the order of the plan's writes."""
    outcome = Outcome(plan)
    written = Written()
    for write, result in zip(plan.writes, results, strict=True):
        yield
        if not isinstance(result, StoreError):
            if write.at is not None and write.state is not None:
                written.states.append((write.at, write.state))
        elif write.at is None:
            written.failed[write.op.path] = result
        else:
            log.warning("the state of %s was not written: %s", write.at, result)
            written.refused.append(write.at)
            if not isinstance(result, NoNode):
                outcome.reread.append(write.at)
    yield from _APPLIERS[type(event)](state, event, written, outcome)
    return outcome


# The controller's start


def _elected(state: ControllerState, event: Elected, written: Written, outcome: Outcome) -> Steps[None]:
    state.epoch = event.epoch
    state.take_brokers(event.brokers)
    state.topics = {}
    state.leaving.clear()
    state.failed.clear()
    for name, node in event.topics.items():
        topic = state.topics[name] = Topic(name, node)
        yield from topic.add_partitions(node)
        for partition in topic.partitions.values():
            yield
            _take_over(state, partition, event.states.get(partition.at))
    state.deletions = {name for name in event.deletions if name in state.topics}
    outcome.notices.append(TellMetadata(()))
    outcome.events.append(ReplicasStarted())
    unknown = tuple(name for name in event.deletions if name not in state.topics)
    if unknown:
        outcome.events.append(DeletionsRequested(unknown))


def _take_over(state: ControllerState, partition: Partition, found: LeaderAndIsr | None) -> None:
    """A partition as an earlier controller left it; without a state it is still new."""
    if found is None:
        return
    partition.state = found
    partition.happened(PartitionEvent.ELECTED if state.is_live(found.leader) else PartitionEvent.LEADER_LOST)
    for broker_id in partition.replicas:
        partition.replica_happened(broker_id, ReplicaEvent.TOLD if state.is_live(broker_id) else ReplicaEvent.STOPPED)


def _replicas_started(
    state: ControllerState, event: ReplicasStarted, written: Written, outcome: Outcome
) -> Steps[None]:
    served: list[TopicPartition] = []
    known: list[TopicPartition] = []
    leaderless: list[TopicPartition] = []
    on_dead: dict[int, list[TopicPartition]] = {}
    for partition in state.partitions():
        yield
        deleting = partition.at.topic in state.deletions
        if partition.state is not None:
            known.append(partition.at)
            if not deleting:
                served.append(partition.at)
                for broker_id in partition.replicas:
                    if not state.is_live(broker_id):
                        on_dead.setdefault(broker_id, []).append(partition.at)
        if partition.status is not PartitionStatus.ONLINE and not deleting:
            leaderless.append(partition.at)
    if served:
        outcome.notices.append(TellReplicas(tuple(served)))
    if known:
        outcome.notices.append(TellMetadata(tuple(known)))
    outcome.events += [ReplicasStopped(broker_id, tuple(at)) for broker_id, at in sorted(on_dead.items())]
    if leaderless:
        outcome.events.append(LeadersNeeded(tuple(leaderless)))
    if state.deletions:
        outcome.events.append(DeletionStarted(tuple(sorted(state.deletions))))
    _resume_reassignments(state, outcome)


def _resume_reassignments(state: ControllerState, outcome: Outcome, came: tuple[int, ...] | None = None) -> None:
    """Those under way begin again: all, or those that go to brokers that came."""
    at = tuple(
        each.at
        for each in state.partitions()
        if each.reassigning and (came is None or not set(came).isdisjoint(each.assignment.target))
    )
    if at:
        outcome.events.append(ReassignmentsDue(at, begin=True))


# Brokers


def _brokers_changed(state: ControllerState, event: BrokersChanged, written: Written, outcome: Outcome) -> Steps[None]:
    before, after = state.brokers, event.brokers
    bounced = [each for each in after if each in before and after[each].epoch != before[each].epoch]
    if bounced:  # gone and back before we looked: both happen, one after the other
        without = {broker_id: node for broker_id, node in after.items() if broker_id not in bounced}
        outcome.events += [BrokersChanged(without), event]
        return
    came = tuple(sorted(each for each in after if each not in before))
    went = sorted(each for each in before if each not in after)
    state.take_brokers(after)
    for broker_id in (*went, *came):
        state.leaving.discard(broker_id)
        state.failed.pop(broker_id, None)
    for broker_id in went:
        log.info("broker %d is gone", broker_id)
        yield from _broker_went(state, broker_id, outcome)
    if came:
        outcome.events.append(BrokerCame(came))
    elif not went and after != before:
        outcome.notices.append(TellMetadata(()))


def _broker_went(state: ControllerState, broker_id: int, outcome: Outcome) -> Steps[None]:
    yield from _replicas_went(state, broker_id, [each.at for each in state.replicas_on(broker_id)], outcome)


def _replicas_went(
    state: ControllerState, broker_id: int, at: Iterable[TopicPartition], outcome: Outcome
) -> Steps[None]:
    """Replicas that are gone with their broker or its log directory."""
    led: list[TopicPartition] = []
    hosted: list[TopicPartition] = []
    for each in at:
        yield
        partition = state.partition(each)
        if partition is None:
            continue
        if partition.at.topic in state.deletions:
            partition.replica_happened(broker_id, ReplicaEvent.STOPPED)
            partition.replica_happened(broker_id, ReplicaEvent.DELETE_FAILED)
            continue
        hosted.append(partition.at)
        if partition.state is not None and partition.state.leader == broker_id:
            partition.happened(PartitionEvent.LEADER_LOST)
            led.append(partition.at)
    if led:
        outcome.events.append(LeadersNeeded(tuple(led)))
    outcome.events.append(ReplicasStopped(broker_id, tuple(hosted), brokers_told=not led))


def _broker_came(state: ControllerState, event: BrokerCame, written: Written, outcome: Outcome) -> Steps[None]:
    came = event.broker_ids
    log.info("%s came", ", ".join(f"broker {broker_id}" for broker_id in came))
    others = tuple(broker_id for broker_id in state.brokers if broker_id not in came)
    if others:
        outcome.notices.append(TellMetadata((), others))
    everything = tuple(partition.at for partition in state.partitions() if partition.state is not None)
    outcome.notices.append(TellMetadata(everything, came))
    hosted: dict[TopicPartition, None] = {}
    for broker_id in came:
        at: list[TopicPartition] = []
        for partition in state.replicas_on(broker_id):
            yield
            if partition.state is not None and partition.at.topic not in state.deletions:
                partition.replica_happened(broker_id, ReplicaEvent.TOLD)
                at.append(partition.at)
        if at:
            outcome.notices.append(TellReplicas(tuple(at), broker_id=broker_id))
            hosted.update(dict.fromkeys(at))
    if hosted:
        outcome.notices.append(TellMetadata(tuple(hosted)))
    leaderless = (PartitionStatus.NEW, PartitionStatus.OFFLINE)
    needed = tuple(partition.at for partition in state.partitions() if partition.status in leaderless)
    if needed:
        outcome.events.append(LeadersNeeded(needed))
    back = [name for name in sorted(state.deletions) if not set(came).isdisjoint(replicas_to_delete(state, [name]))]
    if back:
        outcome.events.append(DeletionStarted(tuple(back)))
    _resume_reassignments(state, outcome, came)


# Topics


def _topics_changed(state: ControllerState, event: TopicsChanged, written: Written, outcome: Outcome) -> Steps[None]:
    for name in [name for name in state.topics if name not in event.names]:
        del state.topics[name]
        state.deletions.discard(name)
    new: list[TopicPartition] = []
    for name, node in event.new.items():
        if name not in state.topics:
            topic = state.topics[name] = Topic(name, node)
            new += yield from topic.add_partitions(node)
    if new:
        outcome.events.append(LeadersNeeded(tuple(new)))


def _topic_changed(state: ControllerState, event: TopicChanged, written: Written, outcome: Outcome) -> Steps[None]:
    topic = state.topics.get(event.name)
    if topic is None or event.name in state.deletions:
        return
    new = yield from topic.add_partitions(event.node)
    if new:
        outcome.events.append(LeadersNeeded(tuple(new)))


def _leaders_needed(state: ControllerState, event: LeadersNeeded, written: Written, outcome: Outcome) -> Steps[None]:
    new: list[TopicPartition] = []
    elected: list[TopicPartition] = []
    for at, written_state in written.states:
        yield
        partition = state.partition(at)
        assert partition is not None
        (new if partition.status is PartitionStatus.NEW else elected).append(at)
        has_leader(state, partition, written_state)
    outcome.tell(new, is_new=True)
    outcome.tell(elected, moved=True)
    _look_at_reassignments(state, outcome, (*new, *elected))
    if outcome.reread:
        outcome.retry = LeadersNeeded(tuple(outcome.reread))


def _replicas_stopped(
    state: ControllerState, event: ReplicasStopped, written: Written, outcome: Outcome
) -> Steps[None]:
    for at, new in written.states:
        yield
        take_state(state, at, new)
    kept: list[TopicPartition] = []
    for at in event.partitions:
        partition = state.partition(at)
        if partition is not None and at.topic not in state.deletions and at not in written.refused:
            partition.replica_happened(event.broker_id, ReplicaEvent.STOPPED)
            if partition.state is not None:
                kept.append(at)
    outcome.tell(kept, but=event.broker_id)
    if kept and state.is_live(event.broker_id):
        raised = frozenset(at for at, _ in written.states)
        outcome.notices.append(TellStop(event.broker_id, tuple(kept), False, raised))
    if event.brokers_told:
        outcome.notices.append(TellMetadata(()))
    if outcome.reread:
        outcome.retry = ReplicasStopped(event.broker_id, tuple(outcome.reread))


def _states_read(state: ControllerState, event: StatesRead, written: Written, outcome: Outcome) -> Steps[None]:
    found_new: list[TopicPartition] = []
    for at, found in event.states.items():
        yield
        partition = state.partition(at)
        if partition is None:
            continue
        if partition.status is PartitionStatus.NEW:
            _take_over(state, partition, found)
            found_new.append(at)
        else:
            partition.state = found
    outcome.tell(found_new, is_new=True)


# Requests


def _isr_proposed(state: ControllerState, event: IsrProposed, written: Written, outcome: Outcome) -> Steps[None]:
    changed: list[TopicPartition] = []
    for at, new in written.states:
        yield
        partition = state.partition(at)
        assert partition is not None
        partition.state = new
        outcome.answers[at] = Answer(Errors.NONE)
        changed.append(at)
    for at in written.refused:
        outcome.answers[at] = Answer(Errors.INVALID_UPDATE_VERSION)
    if changed:
        outcome.notices.append(TellMetadata(tuple(changed)))
    _look_at_reassignments(state, outcome, changed)


def _look_at_reassignments(state: ControllerState, outcome: Outcome, changed: Iterable[TopicPartition]) -> None:
    """New replicas may have come into the ISR."""
    partitions = (state.partition(at) for at in changed)
    at = tuple(each.at for each in partitions if each is not None and each.reassigning)
    if at:
        outcome.events.append(ReassignmentsDue(at))


def _isrs_changed(state: ControllerState, event: IsrsChanged, written: Written, outcome: Outcome) -> Steps[None]:
    """Everybody hears of them, changed or not."""
    told: list[TopicPartition] = []
    for at, found in event.states.items():
        yield
        partition = state.partition(at)
        if partition is not None and partition.state is not None:
            partition.state = found
            told.append(at)
    if told:
        outcome.notices.append(TellMetadata(tuple(told)))
    _look_at_reassignments(state, outcome, told)


def _election_requested(
    state: ControllerState, event: ElectionRequested | LeadersUnbalanced, written: Written, outcome: Outcome
) -> Steps[None]:
    for at, new in written.states:
        yield
        partition = state.partition(at)
        assert partition is not None
        has_leader(state, partition, new)
        outcome.answers[at] = Answer(Errors.NONE)
    for at in written.refused:
        message = "The state of the partition changed meanwhile."
        outcome.answers[at] = Answer(Errors.PREFERRED_LEADER_NOT_AVAILABLE, message)
    outcome.tell((at for at, _ in written.states), moved=True)


def _shutdown_announced(
    state: ControllerState, event: ShutdownAnnounced, written: Written, outcome: Outcome
) -> Steps[None]:
    """Leaders first; then the broker stops following, and leaves the ISRs. What it leads still is answered."""
    if outcome.error:
        return
    leaving = event.broker_id
    state.leaving.add(leaving)
    for at, new in written.states:
        yield
        partition = state.partition(at)
        assert partition is not None
        has_leader(state, partition, new)
        partition.replica_happened(leaving, ReplicaEvent.STOPPED)
    moved = {at for at, _ in written.states}
    outcome.tell((at for at, _ in written.states), moved=True)
    followed: list[TopicPartition] = []
    for partition in state.replicas_on(leaving):
        yield
        if partition.state is None or partition.at.topic in state.deletions or len(partition.replicas) == 1:
            continue
        if partition.state.leader == leaving:
            outcome.answers[partition.at] = Answer(Errors.NONE)
        elif partition.at not in moved:
            followed.append(partition.at)
    log.info("broker %d is leaving: %d leaders moved, %d remain", leaving, len(moved), len(outcome.answers))
    if followed:
        outcome.notices.append(TellStop(leaving, tuple(followed), False))
        outcome.events.append(ReplicasStopped(leaving, tuple(followed)))
    if outcome.reread:
        outcome.retry = event


# Failed log directories


def _log_dirs_failed(state: ControllerState, event: LogDirsFailed, written: Written, outcome: Outcome) -> Steps[None]:
    """The broker is told of all its replicas again, to answer which of them it has lost."""
    for broker_id in event.broker_ids:
        at: list[TopicPartition] = []
        for partition in state.replicas_on(broker_id):
            yield
            if partition.state is not None and partition.at.topic not in state.deletions:
                at.append(partition.at)
        if at and state.is_live(broker_id):
            log.warning("broker %d has lost a log directory", broker_id)
            outcome.notices += [TellReplicas(tuple(at), broker_id=broker_id), TellMetadata(tuple(at))]


def _replicas_answered(
    state: ControllerState, event: ReplicasAnswered, written: Written, outcome: Outcome
) -> Steps[None]:
    if not state.is_live(event.broker_id):
        return
    known = state.failed.setdefault(event.broker_id, set())
    known.difference_update(event.served)
    lost = [at for at in event.failed if at not in known]
    known.update(lost)
    if lost:
        yield from _replicas_went(state, event.broker_id, lost, outcome)


def _unclean_allowed(
    state: ControllerState, event: UncleanAllowed, written: Written, outcome: Outcome
) -> Steps[None]:
    offline = []
    for partition in state.partitions():
        yield
        if partition.status is PartitionStatus.OFFLINE and event.topic in (None, partition.at.topic):
            offline.append(partition.at)
    if offline:
        outcome.events.append(LeadersNeeded(tuple(offline)))


_Applier = Callable[[ControllerState, Any, Written, Outcome], Steps[None]]
_APPLIERS: dict[type, _Applier] = {
    Elected: _elected,
    ReplicasStarted: _replicas_started,
    BrokersChanged: _brokers_changed,
    BrokerCame: _broker_came,
    TopicsChanged: _topics_changed,
    TopicChanged: _topic_changed,
    LeadersNeeded: _leaders_needed,
    ReplicasStopped: _replicas_stopped,
    StatesRead: _states_read,
    IsrProposed: _isr_proposed,
    ElectionRequested: _election_requested,
    DeletionsRequested: deletion.apply_requested,
    DeletionStarted: deletion.apply_started,
    ReplicasDeleted: deletion.apply_replicas_deleted,
    DeletionConfirmed: deletion.apply_confirmed,
    LeadersUnbalanced: _election_requested,
    ShutdownAnnounced: _shutdown_announced,
    LogDirsFailed: _log_dirs_failed,
    ReplicasAnswered: _replicas_answered,
    UncleanAllowed: _unclean_allowed,
    IsrsChanged: _isrs_changed,
    ReassignmentRequested: reassignments.apply_requested,
    ReassignmentNodeRead: reassignments.apply_node_read,
    ReassignmentNodeDone: reassignments.apply_node_done,
    ReassignmentsDue: reassignments.apply_due,
    ReassignmentsCaughtUp: reassignments.apply_caught_up,
    ReplicasUnassigned: reassignments.apply_unassigned,
    ReassignmentsEnded: reassignments.apply_ended,
}
