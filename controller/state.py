"""What the controller knows of the cluster, the states of partitions and replicas as tables, and the events it takes.

Kafka: ControllerContext, PartitionStateMachine, ReplicaStateMachine. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from pybroker.controller.paths import BrokerNode, LeaderAndIsr, TopicNode
from pybroker.protocol.pace import Steps
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID

NO_LEADER = -1
#: Leader in UpdateMetadata that tells brokers to forget the partition, and leader epoch in StopReplica then.
LEADER_DURING_DELETE = -2
EPOCH_DURING_DELETE = -2


class PartitionStatus(Enum):
    NEW = "new"  # assigned, never had a leader
    ONLINE = "online"
    OFFLINE = "offline"  # its leader is gone
    GONE = "gone"


class PartitionEvent(Enum):
    ELECTED = "a leader was elected"
    LEADER_LOST = "the leader is gone"
    DELETED = "the topic was deleted"


_P, _PE = PartitionStatus, PartitionEvent
PARTITION_STATES: dict[tuple[PartitionStatus, PartitionEvent], PartitionStatus] = {
    (_P.NEW, _PE.ELECTED): _P.ONLINE,
    (_P.NEW, _PE.LEADER_LOST): _P.OFFLINE,
    (_P.NEW, _PE.DELETED): _P.GONE,
    (_P.ONLINE, _PE.ELECTED): _P.ONLINE,
    (_P.ONLINE, _PE.LEADER_LOST): _P.OFFLINE,
    (_P.OFFLINE, _PE.ELECTED): _P.ONLINE,
    (_P.OFFLINE, _PE.LEADER_LOST): _P.OFFLINE,
    (_P.OFFLINE, _PE.DELETED): _P.GONE,
}


class ReplicaStatus(Enum):
    NEW = "new"  # its broker has not been told of it: LeaderAndIsr will say isNew
    ONLINE = "online"
    OFFLINE = "offline"  # its broker is gone, or it was stopped
    DELETION_STARTED = "deletion started"
    DELETED = "deleted"
    DELETION_INELIGIBLE = "deletion ineligible"  # its broker is gone or failed to delete it


class ReplicaEvent(Enum):
    TOLD = "its broker was told"
    STOPPED = "its broker is gone, or it was told to stop"
    DELETE_SENT = "its broker was told to delete it"
    DELETE_CONFIRMED = "its broker deleted it"
    DELETE_FAILED = "its broker did not delete it"


_R, _RE = ReplicaStatus, ReplicaEvent
REPLICA_STATES: dict[tuple[ReplicaStatus, ReplicaEvent], ReplicaStatus] = {
    (_R.NEW, _RE.TOLD): _R.ONLINE,
    (_R.NEW, _RE.STOPPED): _R.OFFLINE,
    (_R.ONLINE, _RE.TOLD): _R.ONLINE,
    (_R.ONLINE, _RE.STOPPED): _R.OFFLINE,
    (_R.OFFLINE, _RE.TOLD): _R.ONLINE,
    (_R.OFFLINE, _RE.STOPPED): _R.OFFLINE,
    (_R.OFFLINE, _RE.DELETE_SENT): _R.DELETION_STARTED,
    (_R.OFFLINE, _RE.DELETE_FAILED): _R.DELETION_INELIGIBLE,
    (_R.DELETION_STARTED, _RE.DELETE_CONFIRMED): _R.DELETED,
    (_R.DELETION_STARTED, _RE.DELETE_FAILED): _R.DELETION_INELIGIBLE,
    (_R.DELETION_INELIGIBLE, _RE.STOPPED): _R.OFFLINE,
}


class Assignment(NamedTuple):
    """Replicas of a partition; under reassignment all old and new ones, with those that come and that go (KIP-455)."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]

    @property
    def origin(self) -> list[int]:
        return [each for each in self.replicas if each not in self.adding]

    @property
    def target(self) -> list[int]:
        return [each for each in self.replicas if each not in self.removing]

    def moved_to(self, target: Iterable[int]) -> Assignment:
        """The assignment on the way from where it is, or came from, to the target."""
        wanted, origin = list(target), self.origin
        every = list(dict.fromkeys([*wanted, *origin]))
        return Assignment(
            every, [each for each in every if each not in origin], [each for each in every if each not in wanted]
        )


class Partition:
    """One partition as the controller knows it. `state` is None until the first leader was elected."""

    __slots__ = ("adding", "at", "removing", "replica_statuses", "replicas", "state", "status")

    def __init__(self, at: TopicPartition, node: TopicNode) -> None:
        self.at = at
        self.replicas = node.replicas[at.partition]
        self.adding = node.adding.get(at.partition, [])
        self.removing = node.removing.get(at.partition, [])
        self.state: LeaderAndIsr | None = None
        self.status = PartitionStatus.NEW
        self.replica_statuses = dict.fromkeys(self.replicas, ReplicaStatus.NEW)

    @property
    def reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def assignment(self) -> Assignment:
        return Assignment(self.replicas, self.adding, self.removing)

    def assign(self, new: Assignment) -> list[int]:
        """Takes over another assignment; returns the replicas that it no longer has. New ones are NEW."""
        gone = [broker_id for broker_id in self.replicas if broker_id not in new.replicas]
        self.replicas, self.adding, self.removing = new
        old = self.replica_statuses
        self.replica_statuses = {each: old.get(each, ReplicaStatus.NEW) for each in new.replicas}
        return gone

    def happened(self, event: PartitionEvent) -> None:
        """Moves the partition on. Raises KeyError where the table has no such move."""
        self.status = PARTITION_STATES[self.status, event]

    def replica_happened(self, broker_id: int, event: ReplicaEvent) -> bool:
        """Moves a replica on; False, and no change, where the table has no such move."""
        status = REPLICA_STATES.get((self.replica_statuses.get(broker_id, ReplicaStatus.NEW), event))
        if status is not None:
            self.replica_statuses[broker_id] = status
        return status is not None


class Topic:
    """A topic and those of its partitions that were added so far. `topic_id` is all zeros where it has none."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, node: TopicNode) -> None:
        self.name = name
        self.topic_id = node.topic_id or ZERO_UUID
        self.partitions: dict[int, Partition] = {}

    def add_partitions(self, node: TopicNode) -> Steps[list[TopicPartition]]:
        """Takes over the partitions of the node that are not known yet; returns them."""
        added: list[TopicPartition] = []
        for index in sorted(node.replicas):
            yield
            if index not in self.partitions:
                at = TopicPartition(self.name, index)
                self.partitions[index] = Partition(at, node)
                added.append(at)
        return added


class Abilities(NamedTuple):
    """What brokers can do together, which inter.broker.protocol.version says.

    topic_ids: topics have ids (2.8); before that brokers know no id that a topic may have in the store.
    alter_partition: leaders ask the controller for another ISR (2.7); before that they write partition states
    themselves, so what the controller knows of an ISR may be out of date.
    leader_recovery: a leader that was not in sync is told to recover (3.2, KIP-704).
    features: version of the /feature node (2.7, KIP-584); 0 where brokers know of no features and it says so.
    """

    topic_ids: bool = True
    alter_partition: bool = True
    leader_recovery: bool = True
    features: int = 2


LATEST = Abilities()


class ControllerState:
    """The cluster in the eyes of its controller. Only `apply` changes it."""

    def __init__(
        self,
        broker_id: int,
        inter_broker_listener: str,
        unclean_allowed: Callable[[str], bool],
        abilities: Abilities = LATEST,
    ) -> None:
        self.broker_id = broker_id
        self.inter_broker_listener = inter_broker_listener
        self.unclean_allowed = unclean_allowed
        self.abilities = abilities
        #: Some broker, maybe one that is gone, writes ISRs itself: in a rolling upgrade its protocol may be older.
        self.leaders_write = not abilities.alter_partition
        self.epoch = 0
        self.brokers: dict[int, BrokerNode] = {}
        self.topics: dict[str, Topic] = {}
        self.deletions: set[str] = set()
        #: What /admin/reassign_partitions asks for, of which nothing has come to its end yet.
        self.asked_by_node: dict[TopicPartition, tuple[int, ...]] = {}
        #: Brokers that have announced their end: they are told things still, but lead nothing and join no ISR.
        self.leaving: set[int] = set()
        #: Replicas in log directories that failed.
        self.failed: dict[int, set[TopicPartition]] = {}

    def partition(self, at: TopicPartition) -> Partition | None:
        topic = self.topics.get(at.topic)
        return None if topic is None else topic.partitions.get(at.partition)

    def partitions(self) -> Iterator[Partition]:
        for topic in self.topics.values():
            yield from topic.partitions.values()

    def take_brokers(self, brokers: Mapping[int, BrokerNode]) -> None:
        """Those that are registered now."""
        self.brokers = dict(brokers)
        self.leaders_write |= any(node.features is None for node in brokers.values())

    def topic_id(self, name: str) -> bytes:
        """As brokers are told it: all zeros where there is none, or the protocol has none."""
        return self.topics[name].topic_id if self.abilities.topic_ids else ZERO_UUID

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker can be told things."""
        return broker_id in self.brokers

    def is_online(self, broker_id: int, at: TopicPartition) -> bool:
        """Whether the broker can lead or follow this partition."""
        return (
            broker_id in self.brokers
            and broker_id not in self.leaving
            and at not in self.failed.get(broker_id, ())
        )

    def replicas_on(self, broker_id: int) -> Iterator[Partition]:
        return (partition for partition in self.partitions() if broker_id in partition.replicas)


# Events. Those at the top come from outside; the others follow from one.


class Elected(NamedTuple):
    """This broker became the controller; what it found in the store."""

    epoch: int
    brokers: dict[int, BrokerNode]
    topics: dict[str, TopicNode]
    states: dict[TopicPartition, LeaderAndIsr]
    deletions: tuple[str, ...]


class BrokersChanged(NamedTuple):
    """All brokers that are registered now."""

    brokers: dict[int, BrokerNode]


class TopicsChanged(NamedTuple):
    """Names of all topics there are, and the nodes of those that were not known."""

    names: frozenset[str]
    new: dict[str, TopicNode]


class TopicChanged(NamedTuple):
    """A topic's node was written: partitions were added."""

    name: str
    node: TopicNode


class DeletionsRequested(NamedTuple):
    """Names under /admin/delete_topics that are not being deleted yet."""

    names: tuple[str, ...]


class ReplicasDeleted(NamedTuple):
    """A broker's answer to StopReplica with deletion."""

    broker_id: int
    deleted: tuple[TopicPartition, ...]
    failed: tuple[TopicPartition, ...]


class IsrProposal(NamedTuple):
    """What a leader asks for one partition in AlterPartition."""

    at: TopicPartition
    leader_epoch: int
    isr: tuple[int, ...]
    recovering: bool
    partition_epoch: int


class IsrProposed(NamedTuple):
    broker_id: int
    broker_epoch: int
    proposals: tuple[IsrProposal, ...]


class Election(Enum):
    """Kafka's numbers in ElectLeaders (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectionRequested(NamedTuple):
    """`partitions` None means all."""

    election: Election
    partitions: tuple[TopicPartition, ...] | None


class LeadersUnbalanced(NamedTuple):
    """Time to give leadership back to preferred replicas, of brokers of whose partitions more than so many per cent are
    led elsewhere."""

    percentage: int


class ShutdownAnnounced(NamedTuple):
    """ControlledShutdown of a broker. Epoch -1: from a release that tells none."""

    broker_id: int
    broker_epoch: int


class ReassignmentRequested(NamedTuple):
    """AlterPartitionReassignments: new replicas of partitions, None to cancel. `keep_factor`: as many as there are."""

    wanted: dict[TopicPartition, tuple[int, ...] | None]
    keep_factor: bool = False


class ReassignmentNodeRead(NamedTuple):
    """/admin/reassign_partitions as it is: the old tools' way to move partitions."""

    wanted: dict[TopicPartition, tuple[int, ...]]


class ReassignmentNodeDone(NamedTuple):
    """Partitions that /admin/reassign_partitions need not name any more: done, refused, or asked for otherwise."""

    partitions: tuple[TopicPartition, ...]


class ReassignmentsDue(NamedTuple):
    """Partitions whose reassignment may be complete. `begin`: those that are not, begin (again)."""

    partitions: tuple[TopicPartition, ...]
    begin: bool = False


class ReassignmentsCaughtUp(NamedTuple):
    """All of their new replicas are in sync: the old ones can go."""

    partitions: tuple[TopicPartition, ...]


class ReassignmentsEnded(NamedTuple):
    """Leaders and ISRs are the new ones: the topics' nodes are written."""

    partitions: tuple[TopicPartition, ...]


class ReplicasUnassigned(NamedTuple):
    """Replicas of one broker that no longer belong to their partitions."""

    broker_id: int
    partitions: tuple[TopicPartition, ...]


class LogDirsFailed(NamedTuple):
    """Brokers that report a failed log directory."""

    broker_ids: tuple[int, ...]


class ReplicasAnswered(NamedTuple):
    """A broker's answer to LeaderAndIsr: what it serves, and what lies in a failed log directory."""

    broker_id: int
    served: tuple[TopicPartition, ...]
    failed: tuple[TopicPartition, ...]


class UncleanAllowed(NamedTuple):
    """The settings of a topic, or of all (None), may allow a leader that is not in sync."""

    topic: str | None


class IsrsChanged(NamedTuple):
    """Leaders of older releases have written these states themselves."""

    states: dict[TopicPartition, LeaderAndIsr]


class StatesRead(NamedTuple):
    """Partition states read again after a write was refused because another had come first."""

    states: dict[TopicPartition, LeaderAndIsr]


class ReplicasStarted(NamedTuple):
    """After an election: everything as it is goes to every broker."""


class LeadersNeeded(NamedTuple):
    """Partitions that are new or lost their leader."""

    partitions: tuple[TopicPartition, ...]


class ReplicasStopped(NamedTuple):
    """Replicas of one broker that are no longer served, with all that follows for their ISRs. `brokers_told`: as no
    election told everybody of the brokers that there are, this does it in the end."""

    broker_id: int
    partitions: tuple[TopicPartition, ...]
    brokers_told: bool = False


class BrokerCame(NamedTuple):
    broker_ids: tuple[int, ...]


class DeletionStarted(NamedTuple):
    """The brokers know already that the topics go; now their replicas stop and are deleted."""

    names: tuple[str, ...]


class DeletionConfirmed(NamedTuple):
    """Every replica of the topic is deleted: its nodes can go."""

    name: str


Event = (
    Elected
    | BrokersChanged
    | TopicsChanged
    | TopicChanged
    | DeletionsRequested
    | ReplicasDeleted
    | IsrProposed
    | ElectionRequested
    | LeadersUnbalanced
    | ShutdownAnnounced
    | ReassignmentRequested
    | ReassignmentNodeRead
    | ReassignmentNodeDone
    | ReassignmentsDue
    | ReassignmentsCaughtUp
    | ReassignmentsEnded
    | ReplicasUnassigned
    | LogDirsFailed
    | ReplicasAnswered
    | UncleanAllowed
    | IsrsChanged
    | StatesRead
    | ReplicasStarted
    | LeadersNeeded
    | ReplicasStopped
    | BrokerCame
    | DeletionStarted
    | DeletionConfirmed
)

