"""The controller on the embedded store: from znodes to requests and back, on one broker and on several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.controller import paths
from pybroker.controller.controller import Controller, Rebalance
from pybroker.controller.embedded_store import FILE_NAME, EmbeddedStore
from pybroker.controller.paths import BrokerNode, Endpoint, TopicNode
from pybroker.controller.registration import RegistrationError, prepare_store, register
from pybroker.controller.requests import ControllerRequest
from pybroker.controller.state import LATEST, Abilities, Election, IsrProposal
from pybroker.controller.store import Check, Create, MetadataStore, StoreError
from pybroker.protocol.clock import SystemClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from pybroker.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaResponse,
)
from pybroker.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from pybroker.protocol.schema import Message
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import random_uuid


class Brokers:
    """Stands for every broker: notes what it is told and answers."""

    def __init__(self) -> None:
        self.told: list[tuple[int, ControllerRequest]] = []
        self.unreachable = 0
        self.refuse_deletion = False

    def forget(self, broker_id: int) -> None:
        """There are no connections."""

    async def send(self, broker_id: int, request: ControllerRequest) -> Message:
        await asyncio.sleep(0)
        if self.unreachable:
            self.unreachable -= 1
            raise ConnectionRefusedError("nobody listens")
        self.told.append((broker_id, request))
        if isinstance(request, LeaderAndIsrRequest):
            return LeaderAndIsrResponse()
        if isinstance(request, UpdateMetadataRequest):
            return UpdateMetadataResponse()
        error = Errors.KAFKA_STORAGE_ERROR if self.refuse_deletion else Errors.NONE
        return StopReplicaResponse(
            partition_errors=[
                StopReplicaPartitionError(
                    topic_name=topic.topic_name, partition_index=each.partition_index, error_code=error
                )
                for topic in request.topic_states
                for each in topic.partition_states
            ]
        )

    def kinds(self) -> list[str]:
        return [type(request).__name__.removesuffix("Request") for _, request in self.told]

    def topic_ids(self) -> set[bytes]:
        """That any broker was told of."""
        return {
            topic.topic_id
            for _, request in self.told
            if isinstance(request, UpdateMetadataRequest | LeaderAndIsrRequest)
            for topic in request.topic_states
        }

    def leaders(self) -> dict[TopicPartition, int]:
        """What UpdateMetadata has told so far, with deleted partitions left out."""
        known: dict[TopicPartition, int] = {}
        for _, request in self.told:
            for topic in request.topic_states if isinstance(request, UpdateMetadataRequest) else ():
                for partition in topic.partition_states:
                    known[TopicPartition(topic.topic_name, partition.partition_index)] = partition.leader
        return {at: leader for at, leader in known.items() if leader != -2}


class Cluster:
    """A store, the brokers that answer, and a controller."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int = 0,
        rebalance: Rebalance | None = None,
        abilities: Abilities = LATEST,
    ) -> None:
        self.store = store
        self.brokers = Brokers()
        self.controller = Controller(
            store,
            self.brokers,
            node(broker_id),
            inter_broker_listener="PLAINTEXT",
            clock=SystemClock(),
            unclean_election_allowed=lambda topic: False,
            rebalance=rebalance,
            abilities=abilities,
        )

    async def create_topic(
        self, name: str, partitions: int = 1, replicas: Iterable[int] = (0,), topic_id: bytes | None = b""
    ) -> None:
        new_id = random_uuid() if topic_id == b"" else topic_id
        assignment = TopicNode(new_id, {index: list(replicas) for index in range(partitions)})
        await self.store.create(paths.config("topics", name), paths.encode_config({}))
        await self.store.create(paths.topic(name), paths.encode_topic(assignment))

    async def delete_topic(self, name: str) -> None:
        await self.store.create(paths.delete_topic(name))


def node(broker_id: int) -> BrokerNode:
    return BrokerNode(broker_id, (Endpoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id, "PLAINTEXT"),), release="1")


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / FILE_NAME)
    await prepare_store(opened, None, own_store=True)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def cluster(store: EmbeddedStore) -> AsyncIterator[Cluster]:
    made = Cluster(store)
    await made.controller.start()
    yield made
    await made.controller.stop()


async def idle(controller: Controller) -> None:
    await asyncio.wait_for(controller.wait_idle(), 20)


async def test_start_registers_elects_and_tells_the_first_metadata(cluster: Cluster) -> None:
    controller = cluster.controller
    assert controller.is_active
    assert (controller.controller_id, controller.epoch) == (0, 1)
    assert cluster.brokers.kinds() == ["UpdateMetadata"]
    _, request = cluster.brokers.told[0]
    assert isinstance(request, UpdateMetadataRequest)
    assert (request.controller_id, request.controller_epoch) == (0, 1)
    assert request.broker_epoch == controller.broker_epoch > 0
    (live,) = request.live_brokers
    (endpoint,) = live.endpoints
    assert (live.id, endpoint.host, endpoint.port, endpoint.listener) == (0, "127.0.0.1", 9092, "PLAINTEXT")

    data, stat = await cluster.store.get(paths.broker(0))
    assert paths.decode_broker(0, data, stat.czxid).release == "1"
    assert (stat.version, stat.ephemeral_owner) == (1, cluster.store.session_id)
    assert (await cluster.store.get(paths.CONTROLLER_EPOCH))[0] == b"1"
    assert (await cluster.store.get(paths.FEATURE))[0] == paths.encode_no_features(2)


async def test_a_topics_life(cluster: Cluster) -> None:
    await cluster.create_topic("t", 2)
    await idle(cluster.controller)
    assert cluster.brokers.leaders() == {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0}
    data, _ = await cluster.store.get(paths.partition_state("t", 1))
    assert data == b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'

    before, stat = await cluster.store.get(paths.topic("t"))
    grown = paths.decode_topic(before)
    grown.replicas[2] = [0]
    await cluster.store.set(paths.topic("t"), paths.encode_topic(grown), stat.version)
    await idle(cluster.controller)
    assert cluster.brokers.leaders()[TopicPartition("t", 2)] == 0

    await cluster.delete_topic("t")
    await idle(cluster.controller)
    assert cluster.brokers.leaders() == {}
    for path in (paths.topic("t"), paths.config("topics", "t"), paths.delete_topic("t")):
        assert await cluster.store.exists(path) is None
    assert cluster.controller.topics_pending_deletion == frozenset()

    await cluster.create_topic("t", 1)
    await idle(cluster.controller)
    assert cluster.brokers.leaders() == {TopicPartition("t", 0): 0}


async def test_many_topics_at_once_are_few_events(cluster: Cluster) -> None:
    await asyncio.gather(*(cluster.create_topic(f"t{number}") for number in range(100)))
    await idle(cluster.controller)
    assert len(cluster.brokers.leaders()) == 100
    assert len(cluster.brokers.told) < 50
    await asyncio.gather(*(cluster.delete_topic(f"t{number}") for number in range(100)))
    await idle(cluster.controller)
    assert await cluster.store.children(paths.TOPICS) == []
    assert await cluster.store.children(paths.DELETE_TOPICS) == []


async def test_deletion_is_pending_until_the_replica_is_gone(cluster: Cluster) -> None:
    await cluster.create_topic("t")
    await idle(cluster.controller)
    cluster.brokers.refuse_deletion = True
    await cluster.delete_topic("t")
    await idle(cluster.controller)
    assert cluster.controller.topics_pending_deletion == {"t"}
    assert cluster.brokers.leaders() == {}
    assert await cluster.store.exists(paths.topic("t"))


async def test_a_restart_finds_everything_again(tmp_path: Path) -> None:
    first = await EmbeddedStore.open(tmp_path / FILE_NAME)
    cluster_id = await prepare_store(first, None, own_store=True)
    cluster = Cluster(first)
    await cluster.controller.start()
    await cluster.create_topic("t", 3)
    await idle(cluster.controller)
    before = cluster.controller.broker_epoch
    await cluster.controller.stop()
    await first.close()

    second = await EmbeddedStore.open(tmp_path / FILE_NAME)
    assert await prepare_store(second, cluster_id, own_store=True) == cluster_id
    cluster = Cluster(second)
    await cluster.controller.start()
    assert cluster.controller.epoch == 2
    assert cluster.controller.broker_epoch > before
    assert cluster.brokers.kinds() == ["UpdateMetadata", "LeaderAndIsr", "UpdateMetadata"]
    assert len(cluster.brokers.leaders()) == 3
    await cluster.controller.stop()
    await second.close()


async def test_a_deletion_cut_off_goes_on_after_the_restart(tmp_path: Path) -> None:
    first = await EmbeddedStore.open(tmp_path / FILE_NAME)
    await prepare_store(first, None, own_store=True)
    cluster = Cluster(first)
    await cluster.controller.start()
    await cluster.create_topic("t", 3)
    await idle(cluster.controller)
    await cluster.controller.stop()
    await cluster.delete_topic("t")
    await first.close()

    second = await EmbeddedStore.open(tmp_path / FILE_NAME)
    cluster = Cluster(second)
    await cluster.controller.start()
    await idle(cluster.controller)
    assert await second.children(paths.TOPICS) == []
    await cluster.controller.stop()
    await second.close()


async def test_elections_by_request_and_by_the_old_node(cluster: Cluster) -> None:
    await cluster.create_topic("t")
    await idle(cluster.controller)
    at, unknown = TopicPartition("t", 0), TopicPartition("u", 0)
    answers = await cluster.controller.elect_leaders(Election.PREFERRED, [at, unknown])
    assert answers[at] == (Errors.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    assert answers[unknown] == (Errors.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    assert set(await cluster.controller.elect_leaders(Election.UNCLEAN, None)) == {at}

    await cluster.store.create(paths.PREFERRED_ELECTION, paths.encode_partition_list([at]))
    await idle(cluster.controller)
    assert await cluster.store.exists(paths.PREFERRED_ELECTION) is None
    await cluster.store.create(paths.PREFERRED_ELECTION, b"nonsense")
    await idle(cluster.controller)
    assert await cluster.store.exists(paths.PREFERRED_ELECTION) is None
    assert cluster.controller.reassignments() == []


async def test_the_isr_changes_by_proposal(cluster: Cluster) -> None:
    await register(cluster.store, node(1), 0)
    await idle(cluster.controller)
    await cluster.create_topic("t", 1, [0, 1])
    await idle(cluster.controller)
    at = TopicPartition("t", 0)
    shrunk = await cluster.controller.propose_isrs(
        0, cluster.controller.broker_epoch, [IsrProposal(at, 0, (0,), False, 0)]
    )
    error, state = shrunk[at]
    assert error == Errors.NONE
    assert state is not None
    assert (state.isr, state.partition_epoch, state.leader_epoch) == ((0,), 1, 0)
    with pytest.raises(KafkaError) as stale:
        await cluster.controller.propose_isrs(0, 5, [])
    assert stale.value.code == Errors.STALE_BROKER_EPOCH


async def test_another_brokers_death_and_return(cluster: Cluster) -> None:
    await register(cluster.store, node(1), 0)
    await idle(cluster.controller)
    await cluster.create_topic("t", 1, [1, 0])
    await idle(cluster.controller)
    at = TopicPartition("t", 0)
    assert cluster.brokers.leaders() == {at: 1}
    await cluster.store.delete(paths.broker(1))
    await idle(cluster.controller)
    assert cluster.brokers.leaders() == {at: 0}
    data, _ = await cluster.store.get(paths.partition_state("t", 0))
    assert data == b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":1,"isr":[0]}'
    cluster.brokers.told.clear()
    await register(cluster.store, node(1), 0)
    await idle(cluster.controller)
    assert {broker_id for broker_id, request in cluster.brokers.told if isinstance(request, LeaderAndIsrRequest)} == {1}


async def test_two_controllers_take_turns(store: EmbeddedStore) -> None:
    one, two = Cluster(store, 1), Cluster(store, 2)
    await one.controller.start()
    await two.controller.start()
    assert (one.controller.is_active, two.controller.is_active) == (True, False)
    assert two.controller.controller_id == 1
    with pytest.raises(KafkaError) as refused:
        await two.controller.elect_leaders(Election.PREFERRED, None)
    assert refused.value.code == Errors.NOT_CONTROLLER

    await one.controller.stop()
    await store.delete(paths.CONTROLLER)
    deadline = time.monotonic() + 5
    while not two.controller.is_active:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    await idle(two.controller)
    assert two.controller.epoch == 2
    await two.controller.stop()


async def test_the_node_deleted_by_hand_leads_to_a_new_election(cluster: Cluster) -> None:
    await cluster.store.delete(paths.CONTROLLER)
    await idle(cluster.controller)
    assert (cluster.controller.is_active, cluster.controller.epoch) == (True, 2)
    await cluster.create_topic("t")
    await idle(cluster.controller)
    assert len(cluster.brokers.leaders()) == 1


async def test_a_fenced_controller_resigns(cluster: Cluster) -> None:
    """Another one moved the epoch on: the next write is refused, and nothing more is told in that term of office. As
    the node is this session's still, the next term is its own again."""
    cluster.brokers.told.clear()
    await cluster.store.set(paths.CONTROLLER_EPOCH, b"7")
    await cluster.create_topic("t")
    await idle(cluster.controller)
    assert {request.controller_epoch for _, request in cluster.brokers.told} == {8}
    assert cluster.controller.is_active
    assert len(cluster.brokers.leaders()) == 1


async def test_a_broker_that_cannot_be_reached_is_told_later(cluster: Cluster) -> None:
    cluster.brokers.unreachable = 2
    await cluster.create_topic("t")
    await idle(cluster.controller)
    assert len(cluster.brokers.leaders()) == 1


async def test_the_store_failing_delays_but_loses_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    multi_many = cluster.store.multi_many
    failures = 2

    async def failing(transactions: list[list[Check | Create]]) -> object:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreError("/", reason="disk full")
        return await multi_many(transactions)

    monkeypatch.setattr(cluster.store, "multi_many", failing)
    monkeypatch.setattr("pybroker.controller.work_queue.RETRY_SECONDS", 0.01)
    await cluster.create_topic("t")
    deadline = time.monotonic() + 5
    while not cluster.brokers.leaders():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def test_what_follows_an_answer_comes_though_the_store_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked for a reassignment has been told that it goes on: so it must."""
    await register(cluster.store, node(1), 0)
    await idle(cluster.controller)
    await cluster.create_topic("t", 1, [0])
    await idle(cluster.controller)
    at = TopicPartition("t", 0)
    multi_many = cluster.store.multi_many
    calls = failures = 0

    async def failing(transactions: list[list[Check | Create]]) -> object:
        nonlocal calls, failures
        calls += 1
        if 1 < calls < 4:
            failures += 1
            raise StoreError("/", reason="disk full")
        return await multi_many(transactions)

    monkeypatch.setattr(cluster.store, "multi_many", failing)
    monkeypatch.setattr("pybroker.controller.work_queue.RETRY_SECONDS", 0.01)
    cluster.brokers.told.clear()
    answers = await cluster.controller.reassign({at: (0, 1)})
    assert answers[at][0] == Errors.NONE
    deadline = time.monotonic() + 5
    while "LeaderAndIsr" not in cluster.brokers.kinds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    assert failures == 2
    assert {to for to, request in cluster.brokers.told if isinstance(request, LeaderAndIsrRequest)} == {0, 1}


async def test_an_office_that_was_won_without_knowing_is_given_back(store: EmbeddedStore) -> None:
    """The claim was carried out, but its answer lost: the node would be this session's for as long as it lasts."""
    await store.create(paths.CONTROLLER, paths.encode_controller(0, 0), ephemeral=True)
    cluster = Cluster(store)
    await cluster.controller.start()
    assert cluster.controller.is_active
    assert cluster.controller.epoch == 1
    await cluster.create_topic("t")
    await idle(cluster.controller)
    assert len(cluster.brokers.leaders()) == 1
    await cluster.controller.stop()


async def test_ten_thousand_partitions_do_not_hold_the_loop(cluster: Cluster) -> None:
    turns = 0
    done = False

    async def tick() -> None:
        nonlocal turns
        while not done:
            await asyncio.sleep(0)
            turns += 1

    ticking = asyncio.create_task(tick())
    await cluster.create_topic("big", 10_000)
    await idle(cluster.controller)
    assert len(cluster.brokers.leaders()) == 10_000
    await cluster.delete_topic("big")
    await idle(cluster.controller)
    done = True
    await ticking
    assert await cluster.store.exists(paths.topic("big")) is None
    assert turns > 60, "others had their turn all along: it rests every 2 ms, and takes hundreds of them"


async def test_cluster_ids(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / FILE_NAME)
    # A directory that was another installation's: a store of our own takes its cluster id over.
    assert await prepare_store(store, "CnqmnODyT8KUjzELHCNf2g", own_store=True) == "CnqmnODyT8KUjzELHCNf2g"
    assert (await store.get(paths.CLUSTER_ID))[0] == b'{"version":"1","id":"CnqmnODyT8KUjzELHCNf2g"}'
    assert await prepare_store(store, None, own_store=True) == "CnqmnODyT8KUjzELHCNf2g"
    with pytest.raises(RegistrationError, match="wrong cluster"):
        await prepare_store(store, "B-ja9nFfQRW_DfJq7bwSPw", own_store=True)
    for path in paths.PERSISTENT:
        assert await store.exists(path)
    await store.close()


async def test_an_id_that_is_taken_is_refused(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await register(store, node(3), 0)
    assert (await register(store, node(3), 1)).epoch == first.epoch, "of the same session"
    monkeypatch.setattr(EmbeddedStore, "session_id", -1)
    with pytest.raises(RegistrationError, match=r"id 3 is registered already \(PLAINTEXT://127.0.0.1:9095\)"):
        await register(store, node(3), 0, wait_seconds=0)


async def test_a_broker_waits_for_its_old_session_to_end(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = await register(store, node(3), 0)
    monkeypatch.setattr(EmbeddedStore, "session_id", -1)
    waiting = asyncio.ensure_future(register(store, node(3), 0, wait_seconds=20))
    while "waiting up to 20 s for its end" not in caplog.text:
        await asyncio.sleep(0)
    await store.delete(paths.broker(3))
    assert (await waiting).epoch > first.epoch


