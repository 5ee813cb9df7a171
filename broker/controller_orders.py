"""A controller's orders, carried out: LeaderAndIsr, StopReplica and UpdateMetadata, one after the other.

They come over the network, or from the controller in this process as the same message objects, and ReplicaManager and
MetadataCache learn of partitions in no other way. An order of a deposed controller (a controller epoch below the
highest seen in any order) and one for an earlier registration of this broker (a broker epoch below its node's czxid)
are refused. Kafka: KafkaApis.handleLeaderAndIsrRequest and its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from pybroker.broker.metadata_cache import LEADER_DURING_DELETE, MetadataCache
from pybroker.controller.configs import ConfigRepository
from pybroker.controller.store import StoreError
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)
from pybroker.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from pybroker.replication.manager import ReplicaManager

logger = logging.getLogger(__name__)

NO_EPOCH = -1


class ControllerOrders:
    """See the module. Requests are in the shape of the latest versions: partitions below their topics."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        metadata_cache: MetadataCache,
        configs: ConfigRepository,
        broker_epoch: Callable[[], int],
    ) -> None:
        """`broker_epoch` is that of this broker's present registration, -1 before the first."""
        self._replica_manager = replica_manager
        self._metadata_cache = metadata_cache
        self._configs = configs
        self._broker_epoch = broker_epoch
        self._one_at_a_time = asyncio.Lock()
        self.metadata_known = asyncio.Event()  # a controller has told of the cluster

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Lead and follow; an error for each partition by the topic's id, in the order of the request's topics."""
        async with self._one_at_a_time:
            refusal = self._refusal(request)
            if refusal:
                return refused(request, refusal)
            self._leave_out_foreign(request)
            await self._learn_settings(topic.topic_name for topic in request.topic_states)
            return await self._replica_manager.become_leader_or_follower(request)

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop serving partitions, and delete those the controller says are to be deleted."""
        async with self._one_at_a_time:
            refusal = self._refusal(request)
            if refusal:
                return StopReplicaResponse(error_code=refusal)
            return await self._replica_manager.stop_replicas(request)

    async def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Take over what the cluster looks like."""
        async with self._one_at_a_time:
            refusal = self._refusal(request)
            if refusal:
                return UpdateMetadataResponse(error_code=refusal)
            cache = self._metadata_cache
            await self._learn_settings(
                topic.topic_name
                for topic in request.topic_states
                if any(state.leader != LEADER_DURING_DELETE for state in topic.partition_states)
            )
            for name in {partition.topic for partition in cache.update(request)}:
                if name not in cache:
                    self._configs.forget(f"topics/{name}")
            self.metadata_known.set()
            return UpdateMetadataResponse()

    def _refusal(self, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest) -> Errors:
        if request.is_k_raft_controller:
            return Errors.UNKNOWN_SERVER_ERROR  # as Apache Kafka answers it where there is ZooKeeper
        if request.broker_epoch != NO_EPOCH and request.broker_epoch < self._broker_epoch():
            error = Errors.STALE_BROKER_EPOCH
        elif request.controller_epoch < self._controller_epoch:
            error = Errors.STALE_CONTROLLER_EPOCH
        else:
            return Errors.NONE
        logger.warning(
            "%s of controller %d with controller epoch %d for broker epoch %d is refused: %s",
            type(request).__name__.removesuffix("Request"), request.controller_id, request.controller_epoch,
            request.broker_epoch, error.name,
        )  # fmt: skip
        return error

    @property
    def _controller_epoch(self) -> int:
        """The highest in any order so far."""
        return max(self._replica_manager.controller_epoch, self._metadata_cache.controller_epoch)

    def _leave_out_foreign(self, request: LeaderAndIsrRequest) -> None:
        """Partitions without a replica on this broker are not answered at all."""
        here = self._replica_manager.broker_id
        if all(here in state.replicas for topic in request.topic_states for state in topic.partition_states):
            return
        kept = []
        for topic in request.topic_states:
            states = [state for state in topic.partition_states if here in state.replicas]
            if len(states) < len(topic.partition_states):
                logger.warning("LeaderAndIsr names partitions of %s that have no replica here", topic.topic_name)
            if states:
                kept.append(
                    LeaderAndIsrTopicState(
                        topic_name=topic.topic_name, topic_id=topic.topic_id, partition_states=states
                    )
                )
        request.topic_states = kept

    async def _learn_settings(self, topics: Iterable[str]) -> None:
        """The settings of topics that another broker has made: they are in the store before the topic is."""
        unknown = [path for path in (f"topics/{topic}" for topic in topics) if not self._configs.knows(path)]
        if not unknown:
            return
        try:
            await self._configs.learn(unknown)
        except StoreError as error:
            logger.warning("The settings of %d topics can't be read, defaults apply: %s", len(unknown), error)


def refused(request: LeaderAndIsrRequest, error: Errors) -> LeaderAndIsrResponse:
    """The answer that carries an error for the whole and for every partition."""
    return LeaderAndIsrResponse(
        error_code=error,
        topics=[
            LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=error)
                    for state in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ],
    )
