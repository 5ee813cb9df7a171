"""The partitions of this broker, and the controller's orders about them. Kafka's ReplicaManager.

It learns of partitions only from LeaderAndIsr and StopReplica, on one node too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)
from pybroker.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
)
from pybroker.protocol.pace import Pace
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID
from pybroker.replication.partition import IsrKeeper, Partition

if TYPE_CHECKING:
    from pybroker.storage.log import Log
    from pybroker.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

# A StopReplica with this epoch deletes whatever the replica's own epoch is (Kafka's EpochDuringDelete).
EPOCH_DURING_DELETE = -2
NO_EPOCH = -1


class Fetchers(Protocol):
    """Brings followed partitions from their leaders (fetchers.ReplicaFetchers)."""

    def follow(self, partition: Partition) -> None:
        """Fetch it from its leader, in its leader epoch."""

    def stop(self, partition: Partition) -> None:
        """Fetch it no more; harmless where it was not fetched."""


class ReplicaManager:
    """Hosted partitions by topic and index; see the module."""

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        clock: Clock,
        known_to_cluster: Callable[[str, int], object],
        topic_overrides: Callable[[str], Mapping[str, str]],
    ) -> None:
        """`known_to_cluster` tells (by anything but None) whether the cluster has a partition, wherever it lies."""
        self.broker_id = broker_id
        self.controller_epoch = 0
        self.topics: dict[str, dict[int, Partition]] = {}
        self._log_manager = log_manager
        self._clock = clock
        self._known_to_cluster = known_to_cluster
        self._topic_overrides = topic_overrides
        self._fetchers: Fetchers | None = None
        self._isr_keeper: IsrKeeper | None = None
        # The broker is about to stop: it does not follow what it led, so that no new leader takes it into an ISR
        # (Kafka: ReplicaManager.makeFollowers).
        self.leaving = False
        # Where leaders are to be reached by their followers: (host, port), as the controller told.
        self.leader_addresses: dict[int, tuple[str, int]] = {}
        self._session = 0  # counts the sessions with ZooKeeper that were lost
        self._suspended = False  # this one may be lost
        self._offline: set[TopicPartition] = set()
        # Leader epochs of partitions that were stopped but not deleted: orders up to these are old.
        self._stopped: dict[TopicPartition, int] = {}
        # Told of every partition that got a leader, another one, or went away (`partition.leader` is None then).
        self.listeners: list[Callable[[Partition], None]] = []

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.topics.values():
            yield from partitions.values()

    def replicate(self, fetchers: Fetchers, isr_keeper: IsrKeeper) -> None:
        """From now on follow others and keep ISRs. Call it before the controller's first order."""
        self._fetchers, self._isr_keeper = fetchers, isr_keeper

    def partition(self, topic: str, index: int) -> Partition:
        """The hosted partition. Raises KafkaError: KAFKA_STORAGE_ERROR where its directory is offline,
        NOT_LEADER_OR_FOLLOWER where only others hold it, UNKNOWN_TOPIC_OR_PARTITION where nobody does."""
        partitions = self.topics.get(topic)
        if partitions is not None:
            found = partitions.get(index)
            if found is not None:
                return found
        if (topic, index) in self._offline:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR)
        if self._known_to_cluster(topic, index) is not None:
            raise KafkaError(Errors.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)

    # -- the session with ZooKeeper ----------------------------------------------------------------------------

    def session_changed(self, state: Literal["connected", "suspended", "expired"]) -> None:
        """For MetadataStore.on_session."""
        self._suspended = state == "suspended"
        if state == "expired":
            self._session += 1

    def may_be_deposed(self, partition: Partition) -> bool:
        """Whether another may lead this partition by now, although no order said so: without its session this broker
        counts as dead, and the controller sends it nothing until it has come back. It leads on meanwhile, as in
        Kafka."""
        return self._suspended or partition.session != self._session

    # -- the controller's orders -------------------------------------------------------------------------------

    async def become_leader_or_follower(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Lead or follow as the controller says; an error code for each. STALE_CONTROLLER_EPOCH for a deposed one."""
        if request.controller_epoch < self.controller_epoch:
            return LeaderAndIsrResponse(error_code=Errors.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = request.controller_epoch
        for leader in request.live_leaders:
            self.leader_addresses[leader.broker_id] = leader.host_name, leader.port
        pace = Pace()
        topics = []
        for topic in request.topic_states:
            errors = []
            for state in topic.partition_states:
                code = await self._apply_in_turn(topic, state)
                errors.append(LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=code))
                if pace.due():
                    await pace.rest()
            topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
        return LeaderAndIsrResponse(topics=topics)

    async def _apply_in_turn(self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState) -> Errors:
        """Not while something is being appended: an append of one leader epoch is done before the next one begins. What
        waits to be appended is refused, unless this broker leads on: a batch in the middle of what a producer has sent
        must not fail alone, as those behind it would be out of order."""
        at = TopicPartition(topic.topic_name, state.partition_index)
        while True:
            log = self._log_manager.get(at)
            if log is None or log.queue is None:
                return self._apply(topic, state)
            current = self.topics.get(at.topic, {}).get(at.partition)
            leads_on = state.leader == self.broker_id and current is not None and current.leader is not None
            async with log.queue.turn(refusing=None if leads_on else Errors.NOT_LEADER_OR_FOLLOWER):
                if self._log_manager.get(at) is log:
                    return self._apply(topic, state)

    def _apply(self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState) -> Errors:
        name, index = topic.topic_name, state.partition_index
        current = self.topics.get(name, {}).get(index)
        try:
            if current is None:
                if state.leader_epoch <= self._stopped.get(TopicPartition(name, index), NO_EPOCH):
                    return Errors.STALE_CONTROLLER_EPOCH
                current = self._host(topic, index, state.is_new)
            elif topic.topic_id != ZERO_UUID and current.topic_id not in (ZERO_UUID, topic.topic_id):
                logger.error("Partition %s has another topic id than the controller's; it is not served", current)
                return Errors.INCONSISTENT_TOPIC_ID
            if state.leader_epoch >= current.leader_epoch:
                current.session = self._session
            if state.leader_epoch <= current.leader_epoch:
                return Errors.STALE_CONTROLLER_EPOCH
            if current.topic_id == ZERO_UUID:
                current.topic_id = self._open(topic, index).topic_id or ZERO_UUID
            if self._fetchers is not None:
                self._fetchers.stop(current)
            if state.leader == self.broker_id:
                current.make_leader(state, self._clock.monotonic_ms())
            else:
                current.make_follower(state)
                if self._fetchers is not None and state.leader >= 0 and not self.leaving:
                    self._fetchers.follow(current)
            self._tell(current)
        except KafkaError as error:
            at = TopicPartition(name, index)
            if error.code == Errors.KAFKA_STORAGE_ERROR and self._log_manager.may_be_offline(at, is_new=state.is_new):
                self._offline.add(at)
            return error.code
        except OSError as error:
            logger.error("Partition %s-%d can't be opened: %s; it is offline", name, index, error)
            self._offline.add(TopicPartition(name, index))
            return Errors.KAFKA_STORAGE_ERROR
        return Errors.NONE

    def _tell(self, partition: Partition) -> None:
        for listener in self.listeners:
            listener(partition)

    def _resign(self, partition: Partition) -> None:
        if self._fetchers is not None:
            self._fetchers.stop(partition)
        if partition.log.queue is not None:
            partition.log.queue.refuse(Errors.NOT_LEADER_OR_FOLLOWER)
        partition.resign()
        self._tell(partition)

    def _host(self, topic: LeaderAndIsrTopicState, index: int, is_new: bool) -> Partition:
        log = self._open(topic, index, is_new)
        partition = Partition(topic.topic_name, index, log.topic_id or ZERO_UUID, log, self.broker_id)
        partition.isr_keeper = self._isr_keeper
        self.topics.setdefault(topic.topic_name, {})[index] = partition
        self._stopped.pop(TopicPartition(topic.topic_name, index), None)
        self._offline.discard(TopicPartition(topic.topic_name, index))
        return partition

    def _open(self, topic: LeaderAndIsrTopicState, index: int, is_new: bool = False) -> Log:
        """The partition's log, which keeps the id that it has where the order, of an old version, brings none.

        A partition that is new to the cluster cannot lie in a log directory that has failed, so it may be made here.
        """
        topic_id = None if topic.topic_id == ZERO_UUID else topic.topic_id
        at = TopicPartition(topic.topic_name, index)
        return self._log_manager.get_or_create(at, topic_id, self._topic_overrides(topic.topic_name), is_new=is_new)

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop hosting partitions, deleting those the controller says are to be deleted."""
        if request.controller_epoch < self.controller_epoch:
            return StopReplicaResponse(error_code=Errors.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = request.controller_epoch
        pace = Pace()
        errors = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                code = self._stop(topic.topic_name, state)
                errors.append(
                    StopReplicaPartitionError(
                        topic_name=topic.topic_name, partition_index=state.partition_index, error_code=code
                    )
                )
                if pace.due():
                    await pace.rest()
        return StopReplicaResponse(partition_errors=errors)

    def _stop(self, topic: str, state: StopReplicaPartitionState) -> Errors:
        index = state.partition_index
        at = TopicPartition(topic, index)
        partitions = self.topics.get(topic, {})
        current = partitions.get(index)
        if current is None and at in self._offline:
            return Errors.KAFKA_STORAGE_ERROR  # the controller asks again when this broker comes back
        if current is not None:
            if state.leader_epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and state.leader_epoch < current.leader_epoch:
                return Errors.FENCED_LEADER_EPOCH
            del partitions[index]
            if not partitions:
                del self.topics[topic]
            self._resign(current)
            self._stopped[at] = current.leader_epoch
        if state.delete_partition:
            self._stopped.pop(at, None)
            self._log_manager.delete(at)
        return Errors.NONE

    # -- log directories ---------------------------------------------------------------------------------------

    def logs_went_offline(self, lost: list[TopicPartition]) -> None:
        """Their directory failed: answer KAFKA_STORAGE_ERROR for these from now on."""
        for topic_partition in lost:
            self._offline.add(topic_partition)
            partition = self.topics.get(topic_partition.topic, {}).pop(topic_partition.partition, None)
            if partition is not None:
                self._resign(partition)
