"""What the controller writes upon an event: `decide(state, event)` -> a Plan. No I/O, and the state stays as it is.

Each write is one node; whoever carries it out puts the check of the controller's epoch before it (a multi of two). The
plan's order is the order in which Apache Kafka writes. `apply` takes the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pybroker.controller import paths, reassignments
from pybroker.controller.paths import LeaderAndIsr
from pybroker.controller.plan import Answer, Plan, Write, next_epoch, set_state, without
from pybroker.controller.state import (
    NO_LEADER,
    ControllerState,
    DeletionConfirmed,
    DeletionsRequested,
    DeletionStarted,
    Election,
    ElectionRequested,
    Event,
    IsrProposal,
    IsrProposed,
    LeadersNeeded,
    LeadersUnbalanced,
    Partition,
    PartitionStatus,
    ReassignmentNodeDone,
    ReassignmentRequested,
    ReassignmentsCaughtUp,
    ReassignmentsDue,
    ReassignmentsEnded,
    ReplicasStopped,
    ReplicaStatus,
    ReplicasUnassigned,
    ShutdownAnnounced,
)
from pybroker.controller.store import Create, Delete
from pybroker.protocol.errors import Errors
from pybroker.protocol.pace import Steps
from pybroker.protocol.types import TopicPartition


def decide(state: ControllerState, event: Event) -> Steps[Plan]:
    """The plan for an event; events that write nothing have an empty one."""
    decider = _DECIDERS.get(type(event))
    if decider is None:
        return Plan([], {})
    plan: Plan = yield from decider(state, event)
    return plan


def may_be_outdated(state: ControllerState, event: Event) -> list[TopicPartition]:
    """Partitions whose states are to be read again before the event is decided on: leaders that write their ISRs
    themselves tell of it seconds later. A write that comes too late is refused; these are for what would wrongly not
    be written."""
    if not state.leaders_write:
        return []
    wanted: Iterable[TopicPartition] | None
    if isinstance(event, LeadersNeeded | ElectionRequested):
        wanted = event.partitions
    elif isinstance(event, LeadersUnbalanced):
        wanted = None
    elif isinstance(event, ShutdownAnnounced):
        wanted = [partition.at for partition in state.replicas_on(event.broker_id)]
    else:
        return []
    known = state.partitions() if wanted is None else (state.partition(at) for at in wanted)
    return [partition.at for partition in known if partition is not None and partition.state is not None]


# Leaders


def elect_from_isr(state: ControllerState, partition: Partition, *, unclean: bool) -> LeaderAndIsr | None:
    """The first live replica, in the order of the assignment, that is in sync; with `unclean` any live one when there
    is none (it then has to recover). None when nobody can lead."""
    current = partition.state
    assert current is not None
    at = partition.at
    live = [broker_id for broker_id in partition.replicas if state.is_online(broker_id, at)]
    for broker_id in live:
        if broker_id in current.isr:
            isr = tuple(each for each in current.isr if state.is_online(each, at))
            return next_epoch(state, current, broker_id, isr, current.recovering)
    if unclean and live:
        return next_epoch(state, current, live[0], (live[0],), state.abilities.leader_recovery)
    return None


def _leaders_needed(state: ControllerState, event: LeadersNeeded) -> Steps[Plan]:
    containers: dict[str, Write] = {}
    nodes: list[Write] = []
    states: list[Write] = []
    for at in event.partitions:
        yield
        partition = state.partition(at)
        if partition is None or at.topic in state.deletions:
            continue
        if partition.status is PartitionStatus.NEW:
            live = tuple(broker_id for broker_id in partition.replicas if state.is_online(broker_id, at))
            if not live:
                continue
            containers.setdefault(at.topic, Write(Create(paths.partitions(at.topic))))
            nodes.append(Write(Create(paths.partition(at.topic, at.partition))))
            first = LeaderAndIsr(live[0], 0, live, state.epoch)
            path = paths.partition_state(at.topic, at.partition)
            states.append(Write(Create(path, paths.encode_partition_state(first)), at, first))
        elif partition.status is PartitionStatus.OFFLINE:
            elected = elect_from_isr(state, partition, unclean=state.unclean_allowed(at.topic))
            if elected is not None:
                states.append(set_state(at, elected))
    return Plan([*containers.values(), *nodes, *states], {})


def _election_requested(state: ControllerState, event: ElectionRequested) -> Steps[Plan]:
    plan = Plan([], {})
    wanted = event.partitions
    if wanted is None:
        wanted = tuple(partition.at for partition in state.partitions())
    for at in wanted:
        yield
        decided = _elect_on_request(state, at, event.election)
        if isinstance(decided, Answer):
            plan.answers[at] = decided
        else:
            plan.writes.append(set_state(at, decided))
    return plan


_NOT_NEEDED = Answer(Errors.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


def _elect_on_request(state: ControllerState, at: TopicPartition, election: Election) -> LeaderAndIsr | Answer:
    partition = state.partition(at)
    if partition is None or partition.state is None:
        return Answer(Errors.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if at.topic in state.deletions:
        return Answer(Errors.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    current = partition.state
    if election is Election.PREFERRED:
        preferred = partition.replicas[0]
        if current.leader == preferred:
            return _NOT_NEEDED
        if state.is_online(preferred, at) and preferred in current.isr:
            return next_epoch(state, current, preferred, current.isr, current.recovering)
        strategy, error = "PreferredReplicaPartitionLeaderElectionStrategy", Errors.PREFERRED_LEADER_NOT_AVAILABLE
    else:
        if current.leader != NO_LEADER and state.is_online(current.leader, at):
            return _NOT_NEEDED
        elected = elect_from_isr(state, partition, unclean=True)
        if elected is not None:
            return elected
        strategy, error = "OfflinePartitionLeaderElectionStrategy(true)", Errors.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return Answer(error, f"Failed to elect leader for partition {at} under strategy {strategy}")


def _leaders_unbalanced(state: ControllerState, event: LeadersUnbalanced) -> Steps[Plan]:
    """Kafka: KafkaController.checkAndTriggerAutoLeaderRebalance."""
    preferring: dict[int, list[Partition]] = {}
    for partition in state.partitions():
        yield
        if partition.state is not None and partition.at.topic not in state.deletions:
            preferring.setdefault(partition.replicas[0], []).append(partition)
    plan = Plan([], {})
    for broker_id, partitions in sorted(preferring.items()):
        elsewhere = [each for each in partitions if each.state is not None and each.state.leader != broker_id]
        if len(elsewhere) * 100 <= event.percentage * len(partitions):
            continue
        for partition in elsewhere:
            yield
            decided = None if partition.reassigning else _elect_on_request(state, partition.at, Election.PREFERRED)
            if isinstance(decided, LeaderAndIsr):
                plan.writes.append(set_state(partition.at, decided))
    return plan


def _shutdown_announced(state: ControllerState, event: ShutdownAnnounced) -> Steps[Plan]:
    """The leaders that the broker has are moved to others in sync; it leaves the ISRs of these at once."""
    leaving = event.broker_id
    broker = state.brokers.get(leaving)
    if broker is None:
        return Plan([], {}, Errors.BROKER_NOT_AVAILABLE)
    if event.broker_epoch not in (-1, broker.epoch):
        return Plan([], {}, Errors.STALE_BROKER_EPOCH)
    plan = Plan([], {})
    for partition in state.replicas_on(leaving):
        yield
        current, at = partition.state, partition.at
        if current is None or current.leader != leaving or at.topic in state.deletions:
            continue
        isr = tuple(each for each in current.isr if each != leaving and state.is_online(each, at))
        leader = next((each for each in partition.replicas if each in isr), None)
        if leader is not None:
            plan.writes.append(set_state(at, next_epoch(state, current, leader, isr, current.recovering)))
    return plan


# In-sync replicas


def _replicas_stopped(state: ControllerState, event: ReplicasStopped) -> Steps[Plan]:
    kept = (at for at in event.partitions if at.topic not in state.deletions)
    return Plan((yield from without(state, event.broker_id, kept, {})), {})


def _isr_proposed(state: ControllerState, event: IsrProposed) -> Steps[Plan]:
    broker = state.brokers.get(event.broker_id)
    if broker is None or broker.epoch != event.broker_epoch:
        return Plan([], {}, Errors.STALE_BROKER_EPOCH)
    plan = Plan([], {})
    for proposal in event.proposals:
        yield
        refusal = _check_proposal(state, proposal)
        if refusal is not None:
            plan.answers[proposal.at] = Answer(refusal)
            continue
        partition = state.partition(proposal.at)
        assert partition is not None
        current = partition.state
        assert current is not None
        new = current._replace(
            isr=proposal.isr,
            controller_epoch=state.epoch,
            partition_epoch=current.partition_epoch + 1,
            recovering=proposal.recovering,
        )
        plan.writes.append(set_state(proposal.at, new))
    return plan


def _check_proposal(state: ControllerState, proposal: IsrProposal) -> Errors | None:
    """Why a proposal is not carried out; NONE when the state says it already (a request repeated)."""
    partition = state.partition(proposal.at)
    current = partition.state if partition else None
    if current is None:
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    if proposal.leader_epoch > current.leader_epoch or proposal.partition_epoch > current.partition_epoch:
        return Errors.NOT_CONTROLLER  # the leader has heard from a newer controller than we are
    if proposal.leader_epoch < current.leader_epoch:
        return Errors.FENCED_LEADER_EPOCH
    if proposal.isr == current.isr and proposal.recovering == current.recovering:
        return Errors.NONE
    if proposal.partition_epoch < current.partition_epoch:
        return Errors.INVALID_UPDATE_VERSION
    if proposal.recovering and (len(proposal.isr) > 1 or not current.recovering):
        return Errors.INVALID_REQUEST
    if not all(state.is_online(broker_id, proposal.at) for broker_id in proposal.isr):
        return Errors.INELIGIBLE_REPLICA
    return None


# Deletion


def _deletions_requested(state: ControllerState, event: DeletionsRequested) -> Steps[Plan]:
    """Requests for topics that do not exist are removed."""
    yield
    return Plan([Write(Delete(paths.delete_topic(name))) for name in event.names if name not in state.topics], {})


def replicas_to_delete(state: ControllerState, names: Iterable[str]) -> dict[int, list[TopicPartition]]:
    """Replicas of these topics that were not told to delete themselves yet, by broker, in the order of the ids."""
    by_broker: dict[int, list[TopicPartition]] = {}
    under_way = (ReplicaStatus.DELETION_STARTED, ReplicaStatus.DELETED)
    for name in names:
        topic = state.topics.get(name)
        for partition in topic.partitions.values() if topic else ():
            for broker_id, status in partition.replica_statuses.items():
                if status not in under_way:
                    by_broker.setdefault(broker_id, []).append(partition.at)
    return dict(sorted(by_broker.items()))


def _deletion_started(state: ControllerState, event: DeletionStarted) -> Steps[Plan]:
    writes: list[Write] = []
    changed: dict[TopicPartition, LeaderAndIsr] = {}
    for broker_id, at in replicas_to_delete(state, event.names).items():
        if state.is_live(broker_id):
            writes += yield from without(state, broker_id, at, changed)
    return Plan(writes, {})


def _deletion_confirmed(state: ControllerState, event: DeletionConfirmed) -> Steps[Plan]:
    name = event.name
    topic = state.topics.get(name)
    writes: list[Write] = []
    for index in sorted(topic.partitions) if topic else ():
        yield
        writes.append(Write(Delete(paths.partition_state(name, index))))
        writes.append(Write(Delete(paths.partition(name, index))))
    gone = (paths.partitions(name), paths.topic(name), paths.config("topics", name), paths.delete_topic(name))
    return Plan(writes + [Write(Delete(path)) for path in gone], {})


_DECIDERS: dict[type, Callable[[ControllerState, Any], Steps[Plan]]] = {
    LeadersNeeded: _leaders_needed,
    ElectionRequested: _election_requested,
    ReplicasStopped: _replicas_stopped,
    IsrProposed: _isr_proposed,
    DeletionsRequested: _deletions_requested,
    DeletionStarted: _deletion_started,
    DeletionConfirmed: _deletion_confirmed,
    LeadersUnbalanced: _leaders_unbalanced,
    ShutdownAnnounced: _shutdown_announced,
    ReassignmentRequested: reassignments.decide_requested,
    ReassignmentNodeDone: reassignments.decide_node_done,
    ReassignmentsDue: reassignments.decide_due,
    ReassignmentsCaughtUp: reassignments.decide_caught_up,
    ReplicasUnassigned: reassignments.decide_unassigned,
    ReassignmentsEnded: reassignments.decide_ended,
}
