"""The broker's administrative half in one process, without sockets and logs: a real store, controller, repository and
metadata cache; requests go through the handlers' own modules and their answers through the encoder."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from pybroker.broker.context import EncodedResponse, RequestContext
from pybroker.broker.foreign_brokers import ForeignBrokers
from pybroker.broker.kafka_apis import HANDLERS, ApiMetrics, ServedVersion
from pybroker.broker.metadata_cache import MetadataCache
from pybroker.broker.store_watch import StoreWatch
from pybroker.config import BrokerConfig
from pybroker.controller.configs import ConfigRepository
from pybroker.controller.controller import Controller
from pybroker.controller.embedded_store import EmbeddedStore
from pybroker.controller.paths import BrokerNode, Endpoint
from pybroker.controller.producer_ids import ProducerIds, allocate_block
from pybroker.controller.registration import prepare_store
from pybroker.controller.requests import ControllerRequest
from pybroker.controller.topics import TopicWriter
from pybroker.protocol.clock import SystemClock
from pybroker.protocol.codec import decode, encode_bytes
from pybroker.protocol.errors import KafkaError
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from pybroker.protocol.messages.stop_replica import StopReplicaPartitionError, StopReplicaResponse
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from pybroker.protocol.schema import Message

BROKER_ID = 5
LISTENER = "PLAINTEXT"


class Channel:
    """Carries the controller's orders to the metadata cache. While `held`, nothing is answered."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache
        self.open = asyncio.Event()
        self.open.set()

    def forget(self, broker_id: int) -> None:
        """There are no connections."""

    async def send(self, broker_id: int, request: ControllerRequest) -> Message:
        await self.open.wait()
        if broker_id != BROKER_ID:
            raise ConnectionRefusedError(f"there is no broker {broker_id}")
        if isinstance(request, LeaderAndIsrRequest):
            return LeaderAndIsrResponse()
        if isinstance(request, UpdateMetadataRequest):
            self._cache.update(request)
            return UpdateMetadataResponse()
        return StopReplicaResponse(
            partition_errors=[
                StopReplicaPartitionError(topic_name=topic.topic_name, partition_index=each.partition_index)
                for topic in request.topic_states
                for each in topic.partition_states
            ]
        )


class Room:
    """`call` sends a request as a client would; `denied` are (operation, resource type) that nobody may do."""

    def __init__(self, services: Any, channel: Channel) -> None:
        self.services = services
        self.channel = channel
        self.denied: set[tuple[str, str]] = set()

    @property
    def cache(self) -> MetadataCache:
        cache: MetadataCache = self.services.metadata_cache
        return cache

    async def call(self, request: Message, version: int) -> Any:
        """The response, encoded and decoded again in this version."""
        handler = HANDLERS[request.API_KEY]
        assert handler.lowest <= version <= handler.highest
        served = ServedVersion(handler, request.API_KEY, version, ApiMetrics())
        context = _Context(self.services, self.denied)
        context.api_key, context.api_version, context.listener = request.API_KEY, version, LISTENER
        seen, _ = decode(type(request), version, encode_bytes(request, version))
        try:
            response = served.handle(context, seen)
            if inspect.isawaitable(response):
                response = await response
        except KafkaError as error:
            response = served.error_response(seen, error)
            assert response is not None, error
        parts = response.parts if isinstance(response, EncodedResponse) else served.encode(response)
        body = b"".join(parts)
        answer, end = decode(served.response_class, version, body)
        assert end == len(body)
        return answer


class _Context(RequestContext):
    __slots__ = ("denied",)

    def __init__(self, services: Any, denied: set[tuple[str, str]]) -> None:
        super().__init__(None, services)
        self.denied = denied

    def authorize(self, operation: str, resource_type: str, name: str) -> bool:
        return (operation, resource_type) not in self.denied


@asynccontextmanager
async def open_room(directory: Path, **settings: str) -> AsyncIterator[Room]:
    """A room whose broker, number 5, is the controller. Settings by their names with _ for the dots."""
    config = BrokerConfig.of({name.replace("_", "."): value for name, value in settings.items()})
    store = await EmbeddedStore.open(directory / "metadata")
    cluster_id = await prepare_store(store, None, own_store=True)
    clock = SystemClock()
    cache = MetadataCache(cluster_id, BROKER_ID)
    channel = Channel(cache)
    controller = Controller(
        store,
        channel,
        BrokerNode(BROKER_ID, (Endpoint(LISTENER, "127.0.0.1", 9092, LISTENER),)),
        inter_broker_listener=LISTENER,
        clock=clock,
        unclean_election_allowed=lambda topic: False,
    )
    configs = ConfigRepository(store, clock)
    await configs.load()
    configs.on_change("brokers", lambda *_: config.apply_dynamic(configs.broker(BROKER_ID), configs.broker_defaults()))
    following = asyncio.create_task(configs.run())
    producer_ids = ProducerIds(lambda: allocate_block(store, BROKER_ID))
    services = SimpleNamespace(
        broker_id=BROKER_ID,
        cluster_id=cluster_id,
        config=config,
        clock=clock,
        store=store,
        store_watch=StoreWatch(clock),
        metadata_cache=cache,
        controller=controller,
        topics=TopicWriter(store, cache, config, configs, Random(1)),
        configs=configs,
        producer_ids=producer_ids,
        log_manager=SimpleNamespace(describe=list),
        foreign_brokers=ForeignBrokers(store),
    )
    await controller.start()
    try:
        yield Room(services, channel)
    finally:
        channel.open.set()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        producer_ids.close()
        await controller.stop()
        await store.close()
