"""What a broker asks of the controller: other in-sync sets (AlterPartition, KIP-497) and blocks of producer ids
(AllocateProducerIds, KIP-730). The controller is in this process, or it is the one that UpdateMetadata named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pybroker.broker.isr_answers import answers_by_name
from pybroker.broker.metadata_cache import Endpoint, MetadataCache
from pybroker.config import BrokerConfig
from pybroker.controller.controller import Controller
from pybroker.controller.paths import ProducerIdBlock
from pybroker.controller.producer_ids import allocate_block
from pybroker.controller.state import IsrProposal
from pybroker.controller.store import MetadataStore, StoreError
from pybroker.protocol.connection import BrokerConnection
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from pybroker.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID

ALTER_PARTITION, HIGHEST_ALTER_PARTITION = 56, 3
BY_NAME = 1  # the last version that names topics
ALLOCATE_PRODUCER_IDS, HIGHEST_ALLOCATE_PRODUCER_IDS = 67, 0


class ControllerLink:
    """See the module. Versions are agreed on with ApiVersions."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        store: MetadataStore,
        cache: MetadataCache,
        loop: asyncio.AbstractEventLoop,
        controller: Callable[[], Controller | None],
    ) -> None:
        """`controller` is None until there is one; its broker epoch counts."""
        self._broker_id = broker_id
        self._config = config
        self._store = store
        self._cache = cache
        self._loop = loop
        self._controller = controller
        self._connection: BrokerConnection | None = None
        self._connected_to = -1
        cache.on_gone.append(self._gone)

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """`request` names topics by name and by id. Raises OSError, and KafkaError for the request as a whole."""
        controller = self._registered()
        request.broker_epoch = controller.broker_epoch
        if self._cache.controller_id == self._broker_id:
            return await _alter_here(controller, request)
        connection = self._to_controller()
        version = await connection.highest_version(ALTER_PARTITION, HIGHEST_ALTER_PARTITION)
        if any(topic.topic_id == ZERO_UUID for topic in request.topics):
            version = min(version, BY_NAME)
        response: AlterPartitionResponse = await connection.send(request, version)
        return response

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """The next block of producer ids for this broker. Raises OSError, StoreError; KafkaError when all are used."""
        controller = self._registered()
        if self._cache.controller_id == self._broker_id:
            return await allocate_block(self._store, self._broker_id)
        connection = self._to_controller()
        version = await connection.highest_version(ALLOCATE_PRODUCER_IDS, HIGHEST_ALLOCATE_PRODUCER_IDS)
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=controller.broker_epoch)
        response: AllocateProducerIdsResponse = await connection.send(request, version)
        if response.error_code:
            raise ConnectionError(f"the controller at {connection} answers {Errors(response.error_code).name}")
        first = response.producer_id_start
        return ProducerIdBlock(self._broker_id, first, first + response.producer_id_len - 1)

    def _registered(self) -> Controller:
        controller = self._controller()
        if controller is None:
            raise ConnectionError("this broker is not registered")
        return controller

    def _to_controller(self) -> BrokerConnection:
        endpoint = controller_endpoint(self._config, self._cache, self._cache.controller_id)
        known = self._connection
        if known is None or (known.host, known.port) != (endpoint.host, endpoint.port):
            self.close()
            known = self._connection = connect(endpoint, self._broker_id, self._config, self._loop)
            self._connected_to = self._cache.controller_id
        return known

    def _gone(self, broker_ids: set[int]) -> None:
        """A controller that is dead, or hangs, does not answer any more: its successor is asked at once."""
        if self._connected_to in broker_ids:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._connected_to = -1


def controller_endpoint(config: BrokerConfig, cache: MetadataCache, controller_id: int) -> Endpoint:
    """Where another broker that is the controller is to be asked. Raises ConnectionError where it is not known."""
    endpoint = cache.endpoint(controller_id, config.inter_broker_listener)
    if endpoint is None:
        raise ConnectionError("no controller is known")
    return endpoint


def connect(
    endpoint: Endpoint, broker_id: int, config: BrokerConfig, loop: asyncio.AbstractEventLoop
) -> BrokerConnection:
    """A connection to the controller at `endpoint`."""
    timeout_ms = config.int("controller.socket.timeout.ms")
    return BrokerConnection(endpoint.host, endpoint.port, str(broker_id), loop, request_timeout_ms=timeout_ms)


async def _alter_here(controller: Controller, request: AlterPartitionRequest) -> AlterPartitionResponse:
    proposals = [
        IsrProposal(
            TopicPartition(topic.topic_name, each.partition_index),
            each.leader_epoch, tuple(each.new_isr), bool(each.leader_recovery_state), each.partition_epoch,
        )
        for topic in request.topics
        for each in topic.partitions
    ]  # fmt: skip
    try:
        answers = await controller.propose_isrs(request.broker_id, request.broker_epoch, proposals)
    except StoreError as error:
        raise ConnectionError(f"the metadata store: {error}") from error
    return answers_by_name({at: error if state is None else state for at, (error, state) in answers.items()})
