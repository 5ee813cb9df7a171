"""The controller on its nodes: reassignments, announced shutdowns, elections and notifications of other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.controller import paths
from pybroker.controller.controller import Rebalance
from pybroker.controller.embedded_store import FILE_NAME, EmbeddedStore
from pybroker.controller.paths import LeaderAndIsr
from pybroker.controller.registration import prepare_store
from pybroker.controller.requests import ControllerRequest
from pybroker.controller.state import Abilities, IsrProposal
from pybroker.controller.store import NoNode, Watch
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from pybroker.protocol.schema import Message
from pybroker.protocol.types import TopicPartition
from tests.controller.test_controller import Brokers, Cluster, idle, node

AT = TopicPartition("t", 0)


class LosingBrokers(Brokers):
    """Broker 1 has lost its log directory."""

    async def send(self, broker_id: int, request: ControllerRequest) -> Message:
        response = await super().send(broker_id, request)
        if broker_id != 1 or not isinstance(request, LeaderAndIsrRequest):
            return response
        return LeaderAndIsrResponse(
            topics=[
                LeaderAndIsrTopicError(
                    topic_id=topic.topic_id,
                    partition_errors=[
                        LeaderAndIsrPartitionError(
                            partition_index=each.partition_index, error_code=Errors.KAFKA_STORAGE_ERROR
                        )
                        for each in topic.partition_states
                    ],
                )
                for topic in request.topic_states
            ]
        )


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / FILE_NAME)
    await prepare_store(opened, None, own_store=True)
    for broker_id in (1, 2):
        await opened.create(paths.broker(broker_id), paths.encode_broker(node(broker_id), 1))
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def cluster(store: EmbeddedStore) -> AsyncIterator[Cluster]:
    """Brokers 0, 1 and 2; 0 is the controller."""
    made = Cluster(store)
    await made.controller.start()
    yield made
    await made.controller.stop()


async def state(cluster: Cluster, at: TopicPartition = AT) -> LeaderAndIsr:
    data, stat = await cluster.store.get(paths.partition_state(at.topic, at.partition))
    return paths.decode_partition_state(data, stat.version)


async def until(cluster: Cluster, leader: int) -> LeaderAndIsr:
    async with asyncio.timeout(20):
        while (now := await state(cluster)).leader != leader:
            await asyncio.sleep(0.01)
    return now


async def epoch_of(cluster: Cluster, broker_id: int) -> int:
    return (await cluster.store.get(paths.broker(broker_id)))[1].czxid


async def propose(cluster: Cluster, isr: tuple[int, ...]) -> None:
    now = await state(cluster)
    proposal = IsrProposal(AT, now.leader_epoch, isr, False, now.partition_epoch)
    answers = await cluster.controller.propose_isrs(now.leader, await epoch_of(cluster, now.leader), [proposal])
    assert answers[AT][0] == Errors.NONE
    await idle(cluster.controller)


async def test_a_partition_moves_to_other_replicas(cluster: Cluster) -> None:
    await cluster.create_topic("t", replicas=(1, 0))
    await idle(cluster.controller)
    assert (await cluster.controller.reassign({AT: [2, 0]}))[AT].error == Errors.NONE
    await idle(cluster.controller)
    (moving,) = cluster.controller.reassignments()
    assert (moving.at, moving.replicas, moving.adding, moving.removing) == (AT, [2, 0, 1], [2], [1])
    await propose(cluster, (1, 0, 2))
    assert cluster.controller.reassignments() == []
    now = await state(cluster)
    assert (now.leader, now.isr) == (2, (0, 2))
    topic = paths.decode_topic((await cluster.store.get(paths.topic("t")))[0])
    assert (topic.replicas, topic.adding, topic.removing) == ({0: [2, 0]}, {}, {})
    assert cluster.brokers.kinds().count("StopReplica") == 2
    # Nothing is left of it: the next move of the same partition starts afresh.
    assert (await cluster.controller.reassign({AT: None}))[AT].error == Errors.NO_REASSIGNMENT_IN_PROGRESS


async def test_the_old_tools_move_partitions_by_a_node(cluster: Cluster) -> None:
    await cluster.create_topic("t", replicas=(1, 0))
    await idle(cluster.controller)
    for wanted in ((2, 0), (1, 2)):
        asked = paths.encode_reassignments({AT: wanted, TopicPartition("u", 0): (1,)})
        await cluster.store.create(paths.REASSIGN_PARTITIONS, asked)
        await idle(cluster.controller)
        (moving,) = cluster.controller.reassignments()
        data, _ = await cluster.store.get(paths.REASSIGN_PARTITIONS)
        assert paths.decode_reassignments(data) == {AT: wanted}, "without what was refused"
        now = await state(cluster)
        await propose(cluster, (*now.isr, *moving.adding))
        assert cluster.controller.reassignments() == []
        assert set((await state(cluster)).isr) == set(wanted)
        assert await cluster.store.exists(paths.REASSIGN_PARTITIONS) is None
    await cluster.store.create(paths.REASSIGN_PARTITIONS, b"nonsense")
    await idle(cluster.controller)
    assert (await cluster.store.get(paths.REASSIGN_PARTITIONS))[0] == b"nonsense", "as Kafka leaves it"


async def test_a_node_of_the_old_tools_is_found_by_the_next_controller(cluster: Cluster) -> None:
    await cluster.create_topic("t", replicas=(0,))
    await cluster.create_topic("v", replicas=(0,))
    await idle(cluster.controller)
    await cluster.controller.reassign({AT: [1]})
    await idle(cluster.controller)
    before = (await state(cluster)).leader_epoch
    await cluster.store.delete(paths.CONTROLLER)
    wanted = {AT: (1,), TopicPartition("v", 0): (2,)}
    await cluster.store.create(paths.REASSIGN_PARTITIONS, paths.encode_reassignments(wanted))
    async with asyncio.timeout(20):
        while cluster.controller.epoch < 2:
            await asyncio.sleep(0.01)
    await idle(cluster.controller)
    found = {each.at: each.adding for each in cluster.controller.reassignments()}
    assert found == {AT: [1], TopicPartition("v", 0): [2]}
    assert (await state(cluster)).leader_epoch == before + 1, "begun again once"


async def test_what_fires_between_two_terms_waits_for_the_election(cluster: Cluster) -> None:
    """A wish to delete that comes while nothing is known yet must not be taken for one of an unknown topic."""
    await cluster.create_topic("t", replicas=(0,))
    await idle(cluster.controller)
    get = cluster.store.get

    async def gone(path: str, *watches: Watch) -> object:
        if path == paths.CONTROLLER_EPOCH:
            await cluster.delete_topic("t")
        return await get(path, *watches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster.store, "get", gone)
        await cluster.store.delete(paths.CONTROLLER)
        async with asyncio.timeout(20):
            while cluster.controller.epoch < 2:
                await asyncio.sleep(0.001)
    await idle(cluster.controller)
    assert await cluster.store.exists(paths.topic("t")) is None


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        (2, None, paths.encode_no_features(2)),
        (0, None, paths.encode_no_features(0)),
        (2, paths.encode_no_features(0), paths.encode_no_features(2)),
        (0, paths.encode_no_features(2), paths.encode_no_features(0)),
        (2, b'{"features":{"x":3},"version":2,"status":1}', b'{"features":{"x":3},"version":2,"status":1}'),
        (2, b"damaged", b"damaged"),
    ],
)
async def test_the_node_of_features_is_as_the_protocol_has_it(
    store: EmbeddedStore, version: int, before: bytes | None, after: bytes
) -> None:
    if before is not None:
        await store.create(paths.FEATURE, before)
    made = Cluster(store, abilities=Abilities(features=version))
    await made.controller.start()
    assert (await store.get(paths.FEATURE))[0] == after
    await made.controller.stop()


async def test_a_reassignment_goes_on_under_the_next_controller(cluster: Cluster) -> None:
    await cluster.create_topic("t", replicas=(0,))
    await idle(cluster.controller)
    await cluster.controller.reassign({AT: [1]})
    await idle(cluster.controller)
    await cluster.store.delete(paths.CONTROLLER)
    async with asyncio.timeout(20):
        while cluster.controller.epoch < 2:
            await asyncio.sleep(0.01)
    await idle(cluster.controller)
    assert [each.at for each in cluster.controller.reassignments()] == [AT]
    await propose(cluster, (0, 1))
    assert ((await state(cluster)).leader, (await state(cluster)).isr) == (1, (1,))


async def test_a_broker_announces_its_end(cluster: Cluster) -> None:
    await cluster.create_topic("t", replicas=(1, 2))
    await cluster.create_topic("alone", replicas=(1,))
    await idle(cluster.controller)
    epoch = await epoch_of(cluster, 1)
    with pytest.raises(KafkaError) as stale:
        await cluster.controller.announce_shutdown(1, epoch + 1)
    assert stale.value.code == Errors.STALE_BROKER_EPOCH
    assert await cluster.controller.announce_shutdown(1, epoch) == []
    now = await state(cluster)
    assert (now.leader, now.isr) == (2, (2,))
    assert await cluster.controller.announce_shutdown(2, -1) == [AT]  # nobody else is left


async def led_by_the_second(cluster: Cluster) -> None:
    """Partition AT, of replicas 1 and 2, both in sync."""
    await cluster.create_topic("t", replicas=(1, 2))
    await idle(cluster.controller)
    await cluster.controller.announce_shutdown(1, -1)
    await cluster.store.delete(paths.broker(1))
    await idle(cluster.controller)
    await cluster.store.create(paths.broker(1), paths.encode_broker(node(1), 1))
    async with asyncio.timeout(20):
        while cluster.controller.broker(1) is None:
            await asyncio.sleep(0.01)
    await idle(cluster.controller)
    await propose(cluster, (2, 1))


async def test_an_election_is_asked_for_in_the_old_way(cluster: Cluster) -> None:
    await led_by_the_second(cluster)
    await cluster.store.create(paths.PREFERRED_ELECTION, paths.encode_partition_list([AT]))
    assert (await until(cluster, 1)).isr == (2, 1)
    with pytest.raises(NoNode):
        await cluster.store.get(paths.PREFERRED_ELECTION)


async def test_an_election_asked_for_while_the_controller_looks_is_not_lost(cluster: Cluster) -> None:
    """The node comes right behind the look that finds none, of a controller that takes office."""
    await led_by_the_second(cluster)
    exists, get_many, looks = cluster.store.exists, cluster.store.get_many, 0

    async def looked_in_vain(path: str) -> None:
        nonlocal looks
        looks += path == paths.PREFERRED_ELECTION
        if looks == 2:  # the first one only sets the watch
            looks += 1
            await cluster.store.create(path, paths.encode_partition_list([AT]))

    async def exists_before(path: str, *watches: Watch) -> object:
        found = await exists(path, *watches)
        if found is None:
            await looked_in_vain(path)
        return found

    async def read_before(wanted: list[str], *watches: Watch) -> list[object]:
        found = await get_many(wanted, *watches)
        if found == [None]:
            await looked_in_vain(wanted[0])
        return list(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster.store, "exists", exists_before)
        patch.setattr(cluster.store, "get_many", read_before)
        await cluster.store.delete(paths.CONTROLLER)
        assert (await until(cluster, 1)).isr == (2, 1)
    with pytest.raises(NoNode):
        await cluster.store.get(paths.PREFERRED_ELECTION)


async def test_notifications_are_read_and_removed(cluster: Cluster) -> None:
    await cluster.create_topic("t", replicas=(1, 2))
    await idle(cluster.controller)
    now = await state(cluster)
    await cluster.store.set(paths.partition_state("t", 0), paths.encode_partition_state(now._replace(isr=(1,))), 0)
    await cluster.store.create(paths.isr_change(), paths.encode_partition_list([AT]), sequential=True)
    await cluster.store.create(paths.isr_change(), b"no JSON", sequential=True)
    async with asyncio.timeout(20):
        while await cluster.store.children(paths.ISR_CHANGES):
            await asyncio.sleep(0.01)
    await idle(cluster.controller)
    await propose(cluster, (1, 2))  # from the state that the notification has told


async def test_a_log_directory_fails(store: EmbeddedStore) -> None:
    cluster = Cluster(store)
    await cluster.controller.start()
    await cluster.create_topic("t", replicas=(1, 2))
    await idle(cluster.controller)
    cluster.brokers.__class__ = LosingBrokers
    await store.create(paths.log_dir_event(), paths.encode_log_dir_event(1), sequential=True)
    assert (await until(cluster, 2)).isr in ((1, 2), (2,))
    await idle(cluster.controller)
    assert (await state(cluster)).isr == (2,)
    assert await store.children(paths.LOG_DIR_EVENTS) == []
    await cluster.controller.stop()


async def test_leaders_go_back_by_themselves(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybroker.controller.controller.REBALANCE_DELAY_SECONDS", 0.01)
    cluster = Cluster(store, rebalance=Rebalance(0.02, 10))
    await cluster.controller.start()
    await cluster.create_topic("t", replicas=(1, 2))
    await idle(cluster.controller)
    await cluster.controller.reassign({AT: [2, 1]})  # the order changes, the leader stays
    await until(cluster, 2)
    await cluster.controller.stop()


async def test_topics_of_older_brokers_get_ids(store: EmbeddedStore) -> None:
    """Those found at the election, and one that such a broker makes later."""
    made = Cluster(store)
    await made.create_topic("t", 2, topic_id=None)
    await made.controller.start()
    await made.create_topic("later", topic_id=None)
    await idle(made.controller)
    found = {name: paths.decode_topic((await store.get(paths.topic(name)))[0]).topic_id for name in ("t", "later")}
    assert None not in found.values()
    assert made.brokers.topic_ids() == set(found.values())
    assert made.brokers.leaders() == {AT: 0, TopicPartition("t", 1): 0, TopicPartition("later", 0): 0}
    await made.controller.stop()


async def test_older_brokers_are_told_no_ids(store: EmbeddedStore) -> None:
    """Not even of a topic that has one from better days; its node keeps it. A failed log directory is still found by
    the answers of several topics without ids."""
    made = Cluster(store, abilities=Abilities(topic_ids=False))
    made.brokers.__class__ = LosingBrokers
    await made.create_topic("plain", replicas=(1, 0), topic_id=None)
    await made.create_topic("t", replicas=(1, 0))
    before, _ = await store.get(paths.topic("t"))
    await made.controller.start()
    await idle(made.controller)
    assert made.brokers.topic_ids() == {bytes(16)}
    assert (await store.get(paths.topic("t")))[0] == before
    for at in (AT, TopicPartition("plain", 0)):
        state = paths.decode_partition_state(*await state_node(store, at))
        assert (state.leader, state.isr) == (0, (0,))
    await made.controller.stop()


async def state_node(store: EmbeddedStore, at: TopicPartition) -> tuple[bytes, int]:
    data, stat = await store.get(paths.partition_state(at.topic, at.partition))
    return data, stat.version


async def test_what_another_controller_left_half_done_is_finished(store: EmbeddedStore) -> None:
    """It died between the nodes of a new topic, and between those of one that goes."""
    made = Cluster(store)
    for name in ("bare", "half", "going"):
        await made.create_topic(name, 2, replicas=(0, 1))
    for name in ("half", "going"):
        await store.create(paths.partitions(name))
        await store.create(paths.partition(name, 1))
    left = LeaderAndIsr(1, 7, (1, 0), 3)
    await store.create(paths.partition_state("half", 1), paths.encode_partition_state(left))
    await store.create(paths.partition("half", 0))  # without its state
    await made.delete_topic("going")
    await made.controller.start()
    await idle(made.controller)
    for name in ("bare", "half"):
        for index in (0, 1):
            state = paths.decode_partition_state(*await state_node(store, TopicPartition(name, index)))
            assert (state.leader, set(state.isr)) == ((1, {0, 1}) if (name, index) == ("half", 1) else (0, {0, 1}))
    assert paths.decode_partition_state(*await state_node(store, TopicPartition("half", 1))).leader_epoch == 7
    for path in (paths.topic("going"), paths.config("topics", "going"), paths.delete_topic("going")):
        assert await store.exists(path) is None
    await made.controller.stop()
