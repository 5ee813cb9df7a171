"""What appliers make: what an event led to, once its writes are done."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.controller.paths import LeaderAndIsr
from pybroker.controller.plan import Plan
from pybroker.controller.requests import Notice, TellMetadata, TellReplicas
from pybroker.controller.state import (
    NO_LEADER,
    ControllerState,
    Event,
    Partition,
    PartitionEvent,
    ReplicaEvent,
)
from pybroker.controller.store import Result, StoreError
from pybroker.protocol.types import TopicPartition

WriteResult = Result | StoreError


class Outcome:
    """What an event led to. `reread` names partitions whose state another controller or leader had written: they are
    read again and `retry` is taken up after that. `answers` and `error` are for who sent a request."""

    __slots__ = ("answers", "error", "events", "notices", "reread", "retry")

    def __init__(self, plan: Plan) -> None:
        self.notices: list[Notice] = []
        self.events: list[Event] = []
        self.answers = dict(plan.answers)
        self.error = plan.error
        self.reread: list[TopicPartition] = []
        self.retry: Event | None = None

    def tell(
        self,
        partitions: Iterable[TopicPartition],
        *,
        is_new: bool = False,
        but: int | None = None,
        moved: bool = False,
    ) -> None:
        """Replicas and then everybody hear of these partitions."""
        at = tuple(partitions)
        if at:
            self.notices += [TellReplicas(at, is_new, but=but, moved=moved), TellMetadata(at)]


class Written:
    """What became of a plan: the partition states to take over, and what was refused; other nodes by their path."""

    __slots__ = ("failed", "refused", "states")

    def __init__(self) -> None:
        self.states: list[tuple[TopicPartition, LeaderAndIsr]] = []
        self.refused: list[TopicPartition] = []
        self.failed: dict[str, StoreError] = {}


def has_leader(state: ControllerState, partition: Partition, new: LeaderAndIsr) -> None:
    """A leader was elected, and its replicas hear of it."""
    partition.state = new
    partition.happened(PartitionEvent.ELECTED)
    for broker_id in partition.replicas:
        if state.is_online(broker_id, partition.at):
            partition.replica_happened(broker_id, ReplicaEvent.TOLD)


def take_state(state: ControllerState, at: TopicPartition, new: LeaderAndIsr) -> None:
    """A state was written without an election."""
    partition = state.partition(at)
    assert partition is not None
    partition.state = new
    if new.leader == NO_LEADER:
        partition.happened(PartitionEvent.LEADER_LOST)
