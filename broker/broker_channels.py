"""How the controller's requests reach the brokers: this one directly, each other one over a connection of its own.

The versions are those of inter.broker.protocol.version; nobody is asked for what it knows. The client id is the
controller's id, as Apache Kafka's brokers do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pybroker.broker.controller_orders import ControllerOrders
from pybroker.broker.inter_broker import InterBrokerVersions
from pybroker.controller.paths import BrokerNode, Endpoint
from pybroker.controller.requests import ControllerRequest
from pybroker.protocol.connection import BrokerConnection
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from pybroker.protocol.messages.stop_replica import StopReplicaRequest
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest
from pybroker.protocol.schema import Message


class BrokerChannels:
    """The controller's BrokerChannels; see the module. `node` finds what a live broker has registered."""

    def __init__(
        self,
        broker_id: int,
        orders: ControllerOrders,
        node: Callable[[int], BrokerNode | None],
        listener: str,
        versions: InterBrokerVersions,
        loop: asyncio.AbstractEventLoop,
        request_timeout_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._orders = orders
        self._node = node
        self._listener = listener
        self._loop = loop
        self._timeout_ms = request_timeout_ms
        self._versions: dict[type[Message], int] = {
            LeaderAndIsrRequest: versions.leader_and_isr,
            UpdateMetadataRequest: versions.update_metadata,
            StopReplicaRequest: versions.stop_replica,
        }
        self._connections: dict[int, tuple[int, BrokerConnection]] = {}  # with the broker epoch it was made for

    async def send(self, broker_id: int, request: ControllerRequest) -> Message:
        """The broker's response. Raises OSError where it can't be reached."""
        if broker_id != self._broker_id:
            response: Message = await self._connection(broker_id).send(request, self._versions[type(request)])
            return response
        match request:
            case LeaderAndIsrRequest():
                return await self._orders.leader_and_isr(request)
            case UpdateMetadataRequest():
                return await self._orders.update_metadata(request)
            case StopReplicaRequest():
                return await self._orders.stop_replica(request)

    def forget(self, broker_id: int) -> None:
        """Nothing more is to be sent to a broker, at least for now."""
        found = self._connections.pop(broker_id, None)
        if found is not None:
            found[1].close()

    def close(self) -> None:
        for broker_id in list(self._connections):
            self.forget(broker_id)

    def _connection(self, broker_id: int) -> BrokerConnection:
        node = self._node(broker_id)
        if node is None:
            raise ConnectionError(f"broker {broker_id} is not registered")
        found = self._connections.get(broker_id)
        if found is not None:
            if found[0] == node.epoch:
                return found[1]
            self.forget(broker_id)  # it has come back since, maybe elsewhere
        endpoint = self._endpoint(node)
        # The controller's queues pause by themselves between attempts.
        connection = BrokerConnection(
            endpoint.host,
            endpoint.port,
            str(self._broker_id),
            self._loop,
            request_timeout_ms=self._timeout_ms,
            max_in_flight=1,
            backoff_ms=(0, 0),
        )
        self._connections[broker_id] = node.epoch, connection
        return connection

    def _endpoint(self, node: BrokerNode) -> Endpoint:
        endpoint = node.endpoint(self._listener)
        if endpoint is None:
            raise ConnectionError(f"broker {node.broker_id} has no listener {self._listener}")
        return endpoint
