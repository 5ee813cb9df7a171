"""How the controller's orders reach this broker when they come from its own process.

The same message objects that would cross the network from another controller, so that ReplicaManager and MetadataCache
learn of partitions in one way only.
"""

from __future__ import annotations

from collections.abc import Callable

from pybroker.broker.metadata_cache import MetadataCache
from pybroker.protocol.errors import KafkaError
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from pybroker.protocol.messages.stop_replica import StopReplicaRequest
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from pybroker.protocol.schema import Message
from pybroker.replication.manager import ReplicaManager


class LocalChannel:
    """The controller's BrokerChannels on a cluster of one."""

    def __init__(
        self,
        broker_id: int,
        replica_manager: ReplicaManager,
        metadata_cache: MetadataCache,
        topic_gone: Callable[[str], None],
    ) -> None:
        """`topic_gone` is called with a topic that the cluster has no more."""
        self._broker_id = broker_id
        self._replica_manager = replica_manager
        self._metadata_cache = metadata_cache
        self._topic_gone = topic_gone

    async def send(self, broker_id: int, request: Message) -> Message:
        """Carry out the request here; ConnectionError for any other broker."""
        if broker_id != self._broker_id:
            raise ConnectionError(f"broker {broker_id} is not this process, and there are no connections to others yet")
        match request:
            case LeaderAndIsrRequest():
                return await self._replica_manager.become_leader_or_follower(request)
            case UpdateMetadataRequest():
                return self._update_metadata(request)
            case StopReplicaRequest():
                return await self._replica_manager.stop_replicas(request)
            case _:
                raise ValueError(f"{type(request).__name__} is no order of a controller's")

    def _update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        try:
            removed = self._metadata_cache.update(request)
        except KafkaError as error:
            return UpdateMetadataResponse(error_code=error.code)
        for topic in {partition.topic for partition in removed}:
            if topic not in self._metadata_cache:
                self._topic_gone(topic)
        return UpdateMetadataResponse()
