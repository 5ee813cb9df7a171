"""What deciders make: plans of writes, with answers that are known without writing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pybroker.controller import paths
from pybroker.controller.paths import LeaderAndIsr, TopicNode
from pybroker.controller.state import NO_LEADER, Assignment, ControllerState
from pybroker.controller.store import Op, SetData
from pybroker.protocol.errors import Errors
from pybroker.protocol.pace import Steps
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID


class Write(NamedTuple):
    """One write; `at` and `state` where it is a partition's state that it writes."""

    op: Op
    at: TopicPartition | None = None
    state: LeaderAndIsr | None = None


class Answer(NamedTuple):
    """What a request gets for one partition."""

    error: Errors
    message: str | None = None


class Plan(NamedTuple):
    """Writes in order, and answers to a request that are known without writing. `error` refuses all of a request."""

    writes: list[Write]
    answers: dict[TopicPartition, Answer]
    error: Errors = Errors.NONE


def next_epoch(
    state: ControllerState, current: LeaderAndIsr, leader: int, isr: tuple[int, ...], recovering: bool
) -> LeaderAndIsr:
    """The state after an election, or another change that replicas have to hear of."""
    return LeaderAndIsr(
        leader, current.leader_epoch + 1, isr, state.epoch, current.partition_epoch + 1, recovering
    )


def set_state(at: TopicPartition, new: LeaderAndIsr) -> Write:
    """Expects the version before: `new.partition_epoch` is the one after."""
    path = paths.partition_state(at.topic, at.partition)
    return Write(SetData(path, paths.encode_partition_state(new), new.partition_epoch - 1), at, new)


def set_topic(state: ControllerState, name: str, changed: dict[int, Assignment]) -> Write:
    """A topic's node as the state has it, but for the partitions that change."""
    topic = state.topics[name]
    node = TopicNode(None if topic.topic_id == ZERO_UUID else topic.topic_id, {})
    for index, partition in sorted(topic.partitions.items()):
        assignment = changed.get(index) or partition.assignment
        node.replicas[index] = assignment.replicas
        if assignment.adding:
            node.adding[index] = assignment.adding
        if assignment.removing:
            node.removing[index] = assignment.removing
    return Write(SetData(paths.topic(name), paths.encode_topic(node)))


def without(
    state: ControllerState,
    broker_id: int,
    at: Iterable[TopicPartition],
    changed: dict[TopicPartition, LeaderAndIsr],
) -> Steps[list[Write]]:
    """Takes a broker out of the ISRs it is in; the last member stays, without leading. `changed` holds what writes
    further up in the plan made of a state, and is brought up to date."""
    writes: list[Write] = []
    for each in at:
        yield
        partition = state.partition(each)
        current = changed.get(each) or (partition.state if partition else None)
        if current is None or broker_id not in current.isr:
            continue
        isr = current.isr if len(current.isr) == 1 else tuple(member for member in current.isr if member != broker_id)
        leader = NO_LEADER if current.leader == broker_id else current.leader
        changed[each] = next_epoch(state, current, leader, isr, current.recovering)
        writes.append(set_state(each, changed[each]))
    return writes
