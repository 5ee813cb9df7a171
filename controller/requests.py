"""What brokers are told: notices (who hears of which partitions) and the messages they become.

Contents are those of Apache Kafka 3.9's controller (ControllerChannelManager): LeaderAndIsr to the brokers that hold a
replica, UpdateMetadata to all, StopReplica to the one concerned, each with that broker's epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pybroker.controller.paths import SECURITY_PROTOCOLS, BrokerNode
from pybroker.controller.state import EPOCH_DURING_DELETE, LEADER_DURING_DELETE, ControllerState, Partition
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from pybroker.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from pybroker.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from pybroker.protocol.pace import Steps
from pybroker.protocol.types import TopicPartition

ControllerRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest


class TellReplicas(NamedTuple):
    """LeaderAndIsr of these partitions, to the live brokers with a replica, or to one of them only, or to all but one.
    New is what `is_new` says, and to a replica in `new`. `moved`: they have other leaders now, and these hear first."""

    partitions: tuple[TopicPartition, ...]
    is_new: bool = False
    broker_id: int | None = None
    but: int | None = None
    new: frozenset[tuple[TopicPartition, int]] = frozenset()
    moved: bool = False


class TellMetadata(NamedTuple):
    """UpdateMetadata of the live brokers and of these partitions, to some brokers or to all. Partitions of a topic
    that is being deleted are told as gone."""

    partitions: tuple[TopicPartition, ...]
    broker_ids: tuple[int, ...] | None = None


class TellStop(NamedTuple):
    """StopReplica to one broker for partitions that it deletes or only stops serving. Partitions in `raised` have got
    the next leader epoch by its leaving them; it is told the one before."""

    broker_id: int
    partitions: tuple[TopicPartition, ...]
    delete: bool
    raised: frozenset[TopicPartition] = frozenset()


Notice = TellReplicas | TellMetadata | TellStop


def build(state: ControllerState, notice: Notice) -> Steps[list[tuple[int, ControllerRequest]]]:
    """The messages of a notice, with the broker each is for."""
    requests: list[tuple[int, ControllerRequest]]
    if isinstance(notice, TellReplicas):
        requests = yield from _leader_and_isr(state, notice)
    elif isinstance(notice, TellMetadata):
        requests = yield from _update_metadata(state, notice)
    else:
        requests = yield from _stop_replica(state, notice)
    return requests


def _leader_and_isr(
    state: ControllerState, notice: TellReplicas
) -> Steps[list[tuple[int, ControllerRequest]]]:
    topics_by_broker: dict[int, dict[str, LeaderAndIsrTopicState]] = {}
    leaders_by_broker: dict[int, dict[int, None]] = {}
    for at in notice.partitions:
        yield
        partition = state.partition(at)
        if partition is None or partition.state is None:
            continue
        told = _leader_and_isr_partition(partition, notice.is_new)
        told_new = _leader_and_isr_partition(partition, True) if notice.new else told
        for broker_id in _hearing(state, partition, notice):
            topics = topics_by_broker.setdefault(broker_id, {})
            topic = topics.get(at.topic)
            if topic is None:
                topic = topics[at.topic] = LeaderAndIsrTopicState(
                    topic_name=at.topic, topic_id=state.topic_id(at.topic), partition_states=[]
                )
            topic.partition_states.append(told_new if (at, broker_id) in notice.new else told)
            leaders_by_broker.setdefault(broker_id, {})[partition.state.leader] = None
    return [
        (
            broker_id,
            LeaderAndIsrRequest(
                controller_id=state.broker_id,
                controller_epoch=state.epoch,
                broker_epoch=state.brokers[broker_id].epoch,
                topic_states=list(topics.values()),
                live_leaders=_live_leaders(state, leaders_by_broker[broker_id]),
            ),
        )
        for broker_id, topics in topics_by_broker.items()
    ]


def leads(broker_id: int, request: ControllerRequest) -> bool:
    """Whether a broker is told to lead something."""
    return isinstance(request, LeaderAndIsrRequest) and any(
        each.leader == broker_id for topic in request.topic_states for each in topic.partition_states
    )


def _hearing(state: ControllerState, partition: Partition, notice: TellReplicas) -> Iterable[int]:
    """Brokers that hear of a partition; those that have lost it do not, unless it is to ask them."""
    if notice.broker_id is not None:
        return (notice.broker_id,) if state.is_live(notice.broker_id) else ()
    return [
        each
        for each in partition.replicas
        if each in state.brokers and each != notice.but and partition.at not in state.failed.get(each, ())
    ]


def _leader_and_isr_partition(partition: Partition, is_new: bool) -> LeaderAndIsrPartitionState:
    current = partition.state
    assert current is not None
    return LeaderAndIsrPartitionState(
        partition_index=partition.at.partition,
        controller_epoch=current.controller_epoch,
        leader=current.leader,
        leader_epoch=current.leader_epoch,
        isr=list(current.isr),
        partition_epoch=current.partition_epoch,
        replicas=partition.replicas,
        adding_replicas=partition.adding,
        removing_replicas=partition.removing,
        is_new=is_new,
        leader_recovery_state=int(current.recovering),
    )


def _live_leaders(state: ControllerState, leaders: Iterable[int]) -> list[LeaderAndIsrLiveLeader]:
    found: list[LeaderAndIsrLiveLeader] = []
    for broker_id in leaders:
        broker = state.brokers.get(broker_id)
        endpoint = broker.endpoint(state.inter_broker_listener) if broker else None
        if endpoint is not None:
            found.append(LeaderAndIsrLiveLeader(broker_id=broker_id, host_name=endpoint.host, port=endpoint.port))
    return found


def _update_metadata(
    state: ControllerState, notice: TellMetadata
) -> Steps[list[tuple[int, ControllerRequest]]]:
    topics: dict[str, UpdateMetadataTopicState] = {}
    for at in notice.partitions:
        yield
        partition = state.partition(at)
        deleting = at.topic in state.deletions
        if partition is None or (partition.state is None and not deleting):
            continue
        topic = topics.get(at.topic)
        if topic is None:
            topic = topics[at.topic] = UpdateMetadataTopicState(
                topic_name=at.topic, topic_id=state.topic_id(at.topic), partition_states=[]
            )
        topic.partition_states.append(_metadata_partition(state, partition, deleting))
    # Every broker gets the same but for its own epoch.
    topic_states = list(topics.values())
    live_brokers = [_live_broker(broker) for broker in state.brokers.values()]
    wanted = state.brokers if notice.broker_ids is None else notice.broker_ids
    return [
        (
            broker_id,
            UpdateMetadataRequest(
                controller_id=state.broker_id,
                controller_epoch=state.epoch,
                broker_epoch=state.brokers[broker_id].epoch,
                topic_states=topic_states,
                live_brokers=live_brokers,
            ),
        )
        for broker_id in wanted
        if state.is_live(broker_id)
    ]


def _metadata_partition(state: ControllerState, partition: Partition, deleting: bool) -> UpdateMetadataPartitionState:
    current = partition.state
    return UpdateMetadataPartitionState(
        partition_index=partition.at.partition,
        controller_epoch=current.controller_epoch if current else state.epoch,
        leader=LEADER_DURING_DELETE if deleting or current is None else current.leader,
        leader_epoch=0 if deleting or current is None else current.leader_epoch,
        isr=list(current.isr) if current else [],
        zk_version=0 if deleting or current is None else current.partition_epoch,
        replicas=partition.replicas,
        offline_replicas=[each for each in partition.replicas if not state.is_online(each, partition.at)],
    )


def _live_broker(broker: BrokerNode) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.broker_id,
        endpoints=[
            UpdateMetadataEndpoint(
                port=each.port,
                host=each.host,
                listener=each.listener,
                security_protocol=SECURITY_PROTOCOLS.get(each.protocol, 0),
            )
            for each in broker.endpoints
        ],
        rack=broker.rack,
    )


def _stop_replica(state: ControllerState, notice: TellStop) -> Steps[list[tuple[int, ControllerRequest]]]:
    topics: dict[str, StopReplicaTopicState] = {}
    for at in notice.partitions:
        yield
        topic = topics.get(at.topic)
        if topic is None:
            topic = topics[at.topic] = StopReplicaTopicState(topic_name=at.topic, partition_states=[])
        topic.partition_states.append(
            StopReplicaPartitionState(
                partition_index=at.partition,
                leader_epoch=_stop_epoch(state, at, notice),
                delete_partition=notice.delete,
            )
        )
    broker = state.brokers.get(notice.broker_id)
    if broker is None:
        return []
    request = StopReplicaRequest(
        controller_id=state.broker_id,
        controller_epoch=state.epoch,
        broker_epoch=broker.epoch,
        topic_states=list(topics.values()),
    )
    return [(notice.broker_id, request)]


def _stop_epoch(state: ControllerState, at: TopicPartition, notice: TellStop) -> int:
    partition = state.partition(at)
    if at.topic in state.deletions or partition is None or partition.state is None:
        return EPOCH_DURING_DELETE
    return partition.state.leader_epoch - (at in notice.raised)
