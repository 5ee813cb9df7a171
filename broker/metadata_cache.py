"""What this broker knows of the cluster: brokers, topics, leaders. It learns of them by UpdateMetadata only.

A Metadata answer is joined from encoded pieces: one head (brokers, cluster id, controller) and one piece a topic, each
kept by (version, listener) until it changes. So an answer of 10,000 partitions costs a join, not an encoding, and one
topic's answer a few dictionary lookups.

Partition states are the very objects of the UpdateMetadata message (fields: partition_index, leader, leader_epoch, isr,
replicas, offline_replicas, zk_version, controller_epoch); nobody changes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pybroker.controller.topic_names import INTERNAL_TOPICS
from pybroker.protocol.codec import encode_bytes
from pybroker.protocol.codec_runtime import put_uvarint
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pybroker.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID

NOT_ASKED = -2147483648
"""Authorized operations when the request did not ask for them."""

NO_LEADER = -1
LEADER_DURING_DELETE = -2

# UpdateMetadata before version 3 names no listeners: the security protocol's name is the listener's.
_PROTOCOL_NAMES = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}

# A topic's pieces differ by version, listener and the asker's rights; more kinds than this at once start afresh.
_MAX_PIECES = 64

# Partitions that are encoded in one go while others wait: half a millisecond.
_CHUNK = 400


class Endpoint(NamedTuple):
    """Where one broker listens for one listener name."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Broker(NamedTuple):
    node_id: int
    rack: str | None
    endpoints: Mapping[str, Endpoint]


class Topic:
    """A topic: its partitions by index, and its encoded Metadata pieces."""

    __slots__ = ("generation", "id", "name", "partitions", "pieces", "revision")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.id = topic_id
        self.partitions: dict[int, UpdateMetadataPartitionState] = {}
        self.pieces: dict[tuple[int, str, int], bytes] = {}
        self.generation = 0
        self.revision = 0

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class MetadataCache:
    """See the module's text. All methods run on the event loop; lookups never wait."""

    def __init__(self, cluster_id: str, broker_id: int) -> None:
        self.cluster_id = cluster_id
        self.broker_id = broker_id
        self.controller_id = -1
        self.controller_epoch = -1
        self.topics: dict[str, Topic] = {}
        self.brokers: dict[int, Broker] = {}
        self.partition_count = 0
        self.topics_version = 0  # grows when a topic comes, goes or has other partitions
        # Not set while a broker of a cluster starts: what it does not know yet may be there.
        self.complete = asyncio.Event()
        self.complete.set()
        self._names: dict[bytes, str] = {}
        # Counts changes of the broker list: a piece of an older generation may name a leader that is gone.
        self._generation = 0
        self._heads: dict[tuple[int, str], bytes] = {}
        self._waiting: dict[str, list[_Waiter]] = {}
        # Told of partitions that were deleted.
        self.on_removed: list[Callable[[list[TopicPartition]], None]] = []
        self.on_gone: list[Callable[[set[int]], None]] = []  # brokers that live no more

    # -- lookups -------------------------------------------------------------------------------------------------

    def __contains__(self, topic: str) -> bool:
        return topic in self.topics

    def topic_id(self, topic: str) -> bytes:
        """ZERO_UUID for an unknown topic (and for one without an id, from brokers before 2.8)."""
        found = self.topics.get(topic)
        return found.id if found is not None else ZERO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._names.get(topic_id)

    def partitions(self, topic: str) -> Mapping[int, UpdateMetadataPartitionState]:
        """Partition states by index; empty for an unknown topic."""
        found = self.topics.get(topic)
        return found.partitions if found is not None else {}

    def partition(self, topic: str, index: int) -> UpdateMetadataPartitionState | None:
        found = self.topics.get(topic)
        return found.partitions.get(index) if found is not None else None

    def leader(self, topic: str, index: int) -> tuple[int, int] | None:
        """(leader's broker id, leader epoch) as the controller last told; -1 is no leader. None: unknown partition."""
        state = self.partition(topic, index)
        return (state.leader, state.leader_epoch) if state is not None else None

    def endpoint(self, node_id: int, listener: str) -> Endpoint | None:
        """Where a live broker listens for `listener`."""
        broker = self.brokers.get(node_id)
        return broker.endpoints.get(listener) if broker is not None else None

    def endpoints(self, listener: str) -> list[Endpoint]:
        """The live brokers that have `listener`."""
        found = (broker.endpoints.get(listener) for broker in self.brokers.values())
        return [endpoint for endpoint in found if endpoint is not None]

    def racks(self) -> dict[int, str | None]:
        """Live brokers and their racks, for replica assignment."""
        return {node_id: broker.rack for node_id, broker in self.brokers.items()}

    # -- updates -------------------------------------------------------------------------------------------------

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Take over what a controller tells; returns the partitions that it removed.

        Raises KafkaError STALE_CONTROLLER_EPOCH for a controller that has been superseded.
        """
        if request.controller_epoch < self.controller_epoch:
            raise KafkaError(Errors.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = request.controller_epoch
        self._update_brokers(request)
        removed: list[TopicPartition] = []
        changed: set[str] = set()
        for topic in request.topic_states:
            topic_id = topic.topic_id if topic.topic_id != ZERO_UUID else self.topic_id(topic.topic_name)
            self._update_topic(topic.topic_name, topic_id, topic.partition_states, removed)
            changed.add(topic.topic_name)
        for name, states in _by_topic(request.ungrouped_partition_states).items():
            self._update_topic(name, self.topic_id(name), states, removed)
            changed.add(name)
        self._wake(changed)
        if removed:
            for listener in self.on_removed:
                listener(removed)
        return removed

    def _update_brokers(self, request: UpdateMetadataRequest) -> None:
        brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
        if brokers == self.brokers and request.controller_id == self.controller_id:
            return
        if brokers != self.brokers:
            self._generation += 1
        gone = self.brokers.keys() - brokers.keys()
        self.brokers = brokers
        self.controller_id = request.controller_id
        self._heads.clear()
        if gone:
            for listener in self.on_gone:
                listener(gone)

    def _update_topic(
        self,
        name: str,
        topic_id: bytes,
        states: Iterable[UpdateMetadataPartitionState],
        removed: list[TopicPartition],
    ) -> None:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name, topic_id)
        elif topic.id != topic_id:
            self._names.pop(topic.id, None)
            if ZERO_UUID not in (topic.id, topic_id):  # it was deleted, and made anew, while this broker heard nothing
                removed += [TopicPartition(name, index) for index in topic.partitions]
                self.partition_count -= len(topic.partitions)
                topic.partitions.clear()
            topic.id = topic_id
        if topic_id != ZERO_UUID:
            self._names[topic_id] = name
        topic.pieces.clear()
        topic.revision += 1
        partitions = topic.partitions
        before = len(partitions)
        for state in states:
            if state.leader != LEADER_DURING_DELETE:
                partitions[state.partition_index] = state
                continue
            if partitions.pop(state.partition_index, None) is not None:
                removed.append(TopicPartition(name, state.partition_index))
        self.partition_count += len(partitions) - before
        if len(partitions) != before:
            self.topics_version += 1
        if not partitions:
            del self.topics[name]
            self._names.pop(topic_id, None)

    # -- waiting -------------------------------------------------------------------------------------------------

    async def wait_until(self, topics: Iterable[str], done: Callable[[], bool], timeout: float) -> bool:
        """Wait (at most `timeout` seconds) until `done()` holds; it is asked after each update of one of `topics`."""
        if done():
            return True
        names = set(topics)
        waiter = _Waiter(done, asyncio.get_running_loop().create_future())
        for name in names:
            self._waiting.setdefault(name, []).append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter.future
            return True
        except TimeoutError:
            return False
        finally:
            for name in names:
                waiters = self._waiting[name]
                waiters.remove(waiter)
                if not waiters:
                    del self._waiting[name]

    def _wake(self, changed: Iterable[str]) -> None:
        for name in changed:
            for waiter in self._waiting.get(name, ()):
                if not waiter.future.done() and waiter.done():
                    waiter.future.set_result(None)

    # -- Metadata answers ------------------------------------------------------------------------------------------

    def head(self, version: int, listener: str) -> bytes:
        """A MetadataResponse up to its topics: throttle time 0, brokers, cluster id, controller id."""
        head = self._heads.get((version, listener))
        if head is None:
            whole = encode_bytes(self.response_without_topics(listener), version)
            head = whole[: -(tail_size(version) + (1 if version >= 9 else 4))]
            self._heads[version, listener] = head
        return head

    def response_without_topics(self, listener: str) -> MetadataResponse:
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=e.node_id, host=e.host, port=e.port, rack=e.rack)
                for e in self.endpoints(listener)
            ],
            cluster_id=self.cluster_id,
            controller_id=self.controller_id,
        )

    def piece(self, topic: Topic, version: int, listener: str, authorized_operations: int = NOT_ASKED) -> bytes:
        """The topic's element of a MetadataResponse's topics, encoded."""
        if topic.generation != self._generation:
            topic.pieces.clear()
            topic.generation = self._generation
        key = (version, listener, authorized_operations)
        piece = topic.pieces.get(key)
        if piece is None:
            described = _topic_message(topic, authorized_operations)
            described.partitions = self.describe(topic, version, listener)
            piece = encode_topic(described, version)
            _keep(topic, key, piece)
        return piece

    async def prepare(self, topic: Topic, version: int, listener: str, authorized_operations: int = NOT_ASKED) -> None:
        """Make the piece of a topic of thousands of partitions, letting others run meanwhile; then `piece` finds it."""
        key = (version, listener, authorized_operations)
        while topic.generation != self._generation or key not in topic.pieces:
            seen = (topic.revision, self._generation)
            described = _topic_message(topic, authorized_operations)
            chunks: list[bytes] = []
            indexes = sorted(topic.partitions)
            for start in range(0, len(indexes), _CHUNK):
                states = [topic.partitions.get(index) for index in indexes[start : start + _CHUNK]]
                described.partitions = [self.describe_partition(state, version, listener) for state in states if state]
                chunks.append(encode_topic(described, version))
                await asyncio.sleep(0)
            if (topic.revision, self._generation) != seen:
                continue
            if topic.generation != self._generation:
                topic.pieces.clear()
                topic.generation = self._generation
            described.partitions = []
            _keep(topic, key, _join_chunks(encode_topic(described, version), chunks, len(indexes), version))

    def describe(self, topic: Topic, version: int, listener: str) -> list[MetadataResponsePartition]:
        """The topic's partitions in order of their index, as Metadata of that version tells them."""
        return [self.describe_partition(topic.partitions[i], version, listener) for i in sorted(topic.partitions)]

    def describe_partition(
        self, state: UpdateMetadataPartitionState, version: int, listener: str
    ) -> MetadataResponsePartition:
        """One partition. Version 0 names only replicas that can be reached; up to version 5 a leader without this
        listener counts as missing (Kafka: ZkMetadataCache.getPartitionMetadata)."""
        replicas, isr = state.replicas, state.isr
        if version == 0:
            replicas = [node_id for node_id in replicas if self.endpoint(node_id, listener) is not None]
            isr = [node_id for node_id in isr if self.endpoint(node_id, listener) is not None]
        leader = state.leader
        if self.endpoint(leader, listener) is None:
            missing = version < 6 or leader not in self.brokers
            error = Errors.LEADER_NOT_AVAILABLE if missing else Errors.LISTENER_NOT_FOUND
            leader = NO_LEADER
        elif len(replicas) < len(state.replicas) or len(isr) < len(state.isr):
            error = Errors.REPLICA_NOT_AVAILABLE
        else:
            error = Errors.NONE
        return MetadataResponsePartition(
            error_code=error,
            partition_index=state.partition_index,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=state.offline_replicas,
        )


def _topic_message(topic: Topic, authorized_operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        topic_authorized_operations=authorized_operations,
    )


def _keep(topic: Topic, key: tuple[int, str, int], piece: bytes) -> None:
    if len(topic.pieces) >= _MAX_PIECES:
        topic.pieces.clear()
    topic.pieces[key] = piece


class _Waiter:
    __slots__ = ("done", "future")

    def __init__(self, done: Callable[[], bool], future: asyncio.Future[None]) -> None:
        self.done = done
        self.future = future


def tail_size(version: int) -> int:
    """Bytes of a MetadataResponse behind its topics: authorized operations, error code, tags."""
    return (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0) + (1 if version >= 9 else 0)


def encode_topic(topic: MetadataResponseTopic, version: int) -> bytes:
    """One element of a MetadataResponse's topics, cut out of an answer that holds nothing else."""
    empty = len(encode_bytes(MetadataResponse(), version))
    tail = tail_size(version)
    whole = encode_bytes(MetadataResponse(topics=[topic]), version)
    return whole[empty - tail : len(whole) - tail]


def _join_chunks(bare: bytes, chunks: list[bytes], partitions: int, version: int) -> bytes:
    """One topic out of several that hold some of its partitions each. `bare` is the topic without any."""
    tail = (4 if version >= 8 else 0) + (1 if version >= 9 else 0)
    head = bare[: len(bare) - tail - len(array_length(0, version))]
    full = len(head) + len(array_length(_CHUNK, version))
    last = len(head) + len(array_length((partitions - 1) % _CHUNK + 1, version))
    inner = [chunk[full : len(chunk) - tail] for chunk in chunks[:-1]]
    inner.append(chunks[-1][last : len(chunks[-1]) - tail])
    return b"".join((head, array_length(partitions, version), *inner, bare[len(bare) - tail :]))


def array_length(count: int, version: int) -> bytes:
    """How a Metadata message of that version writes the length of an array."""
    if version < 9:
        return count.to_bytes(4, "big")
    out = bytearray()
    put_uvarint(out, count + 1)
    return bytes(out)


def _broker(broker: UpdateMetadataBroker) -> Broker:
    rack = broker.rack or None
    endpoints = {}
    for each in broker.endpoints:
        listener = each.listener or _PROTOCOL_NAMES.get(each.security_protocol, "")
        endpoints[listener] = Endpoint(broker.id, each.host, each.port, rack)
    if not endpoints and broker.v0_host:
        endpoints["PLAINTEXT"] = Endpoint(broker.id, broker.v0_host, broker.v0_port, rack)
    return Broker(broker.id, rack, endpoints)


def _by_topic(states: Iterable[UpdateMetadataPartitionState]) -> dict[str, list[UpdateMetadataPartitionState]]:
    topics: dict[str, list[UpdateMetadataPartitionState]] = {}
    for state in states:
        topics.setdefault(state.topic_name, []).append(state)
    return topics
