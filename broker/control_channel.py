"""How the controller's orders reach this broker when they come from its own process.

The same message objects that would cross the network from another controller, so that ReplicaManager and MetadataCache
learn of partitions in one way only.
"""

from __future__ import annotations

from pybroker.broker.metadata_cache import MetadataCache
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from pybroker.protocol.messages.stop_replica import StopReplicaRequest
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from pybroker.protocol.schema import Message
from pybroker.replication.manager import ReplicaManager


class LocalChannel:
    """The controller's BrokerChannels on a cluster of one."""

    def __init__(self, broker_id: int, replica_manager: ReplicaManager, metadata_cache: MetadataCache) -> None:
        self._broker_id = broker_id
        self._replica_manager = replica_manager
        self._metadata_cache = metadata_cache

    async def send(self, broker_id: int, request: Message) -> Message:
        """Carry out the request here; ConnectionError for any other broker."""
        if broker_id != self._broker_id:
            raise ConnectionError(f"broker {broker_id} is not this process, and there are no connections to others yet")
        match request:
            case LeaderAndIsrRequest():
                return await self._replica_manager.become_leader_or_follower(request)
            case UpdateMetadataRequest():
                self._metadata_cache.update(request)
                return UpdateMetadataResponse()
            case StopReplicaRequest():
                return await self._replica_manager.stop_replicas(request)
            case _:
                raise ValueError(f"{type(request).__name__} is no order of a controller's")
