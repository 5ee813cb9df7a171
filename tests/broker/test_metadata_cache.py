from __future__ import annotations

import asyncio

import pytest

from pybroker.broker.metadata_cache import NOT_ASKED, MetadataCache, tail_size
from pybroker.protocol.codec import decode, encode_bytes
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from pybroker.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID

ID = b"\x07" * 16
OTHER_ID = b"\x08" * 16


def broker(node_id: int, *listeners: str, rack: str | None = None) -> UpdateMetadataBroker:
    endpoints = [
        UpdateMetadataEndpoint(listener=name, host="h", port=1000 * node_id + n, security_protocol=0)
        for n, name in enumerate(listeners or ("PLAINTEXT",))
    ]
    return UpdateMetadataBroker(id=node_id, endpoints=endpoints, rack=rack)


def state(
    index: int, leader: int = 1, replicas: tuple[int, ...] = (1,), epoch: int = 0
) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=index, leader=leader, leader_epoch=epoch, isr=list(replicas), replicas=list(replicas)
    )


def update(
    *topics: tuple[str, bytes, list[UpdateMetadataPartitionState]],
    brokers: tuple[UpdateMetadataBroker, ...] = (),
    epoch: int = 1,
) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=epoch,
        topic_states=[UpdateMetadataTopicState(topic_name=n, topic_id=i, partition_states=p) for n, i, p in topics],
        live_brokers=list(brokers or (broker(1),)),
    )


def filled(*topics: tuple[str, bytes, list[UpdateMetadataPartitionState]]) -> MetadataCache:
    cache = MetadataCache("cluster", 1)
    cache.update(update(*topics))
    return cache


def answer(cache: MetadataCache, version: int, name: str, listener: str = "PLAINTEXT") -> MetadataResponse:
    """The joined answer for one topic, decoded."""
    piece = cache.piece(cache.topics[name], version, listener)
    count = b"\x02" if version >= 9 else b"\0\0\0\1"
    whole = encode_bytes(MetadataResponse(), version)
    joined = b"".join((cache.head(version, listener), count, piece, whole[len(whole) - tail_size(version) :]))
    response, end = decode(MetadataResponse, version, joined)
    assert end == len(joined)
    return response


@pytest.mark.parametrize("version", range(14))
def test_joined_pieces_are_the_encoded_message(version: int) -> None:
    cache = filled(("t", ID, [state(1), state(0)]), ("__consumer_offsets", OTHER_ID, [state(0)]))
    response = answer(cache, version, "t")
    topic = MetadataResponseTopic(
        name="t", topic_id=ID, partitions=cache.describe(cache.topics["t"], version, "PLAINTEXT")
    )
    whole = cache.response_without_topics("PLAINTEXT")
    whole.topics = [topic]
    assert encode_bytes(response, version) == encode_bytes(whole, version)
    assert [p.partition_index for p in response.topics[0].partitions] == [0, 1]
    assert answer(cache, version, "__consumer_offsets").topics[0].is_internal is (version >= 1)


def test_lookups() -> None:
    cache = filled(("t", ID, [state(0), state(1, leader=-1, epoch=4)]))
    assert cache.topic_id("t") == ID
    assert cache.topic_name(ID) == "t"
    assert cache.topic_id("nope") == ZERO_UUID
    assert cache.topic_name(OTHER_ID) is None
    assert cache.leader("t", 1) == (-1, 4)
    assert cache.leader("t", 2) is None
    assert cache.partition_count == 2
    assert list(cache.partitions("t")) == [0, 1]
    assert cache.partitions("nope") == {}
    assert cache.racks() == {1: None}
    assert "t" in cache and "nope" not in cache


def test_deletion_and_recreation() -> None:
    cache = filled(("t", ID, [state(0), state(1)]))
    assert cache.update(update(("t", ID, [state(0, leader=-2), state(1, leader=-2)]))) == [
        TopicPartition("t", 0),
        TopicPartition("t", 1),
    ]
    assert "t" not in cache
    assert cache.topic_name(ID) is None
    assert cache.partition_count == 0
    cache.update(update(("t", OTHER_ID, [state(0)])))
    assert cache.topic_id("t") == OTHER_ID
    assert cache.topic_name(ID) is None


def test_a_topic_made_anew_unheard_keeps_nothing_of_the_old_one() -> None:
    """The broker was away while it was deleted."""
    cache = filled(("t", ID, [state(0), state(1), state(2)]))
    gone = cache.update(update(("t", OTHER_ID, [state(0)])))
    assert gone == [TopicPartition("t", index) for index in range(3)]
    assert list(cache.partitions("t")) == [0]
    assert (cache.partition_count, cache.topic_name(ID), cache.topic_name(OTHER_ID)) == (1, None, "t")


def test_a_superseded_controller_is_refused() -> None:
    cache = MetadataCache("cluster", 1)
    cache.update(update(epoch=5))
    with pytest.raises(KafkaError) as refused:
        cache.update(update(("t", ID, [state(0)]), epoch=4))
    assert refused.value.code == Errors.STALE_CONTROLLER_EPOCH
    assert "t" not in cache


def test_versions_0_to_4_name_the_topic_in_the_partition() -> None:
    cache = MetadataCache("cluster", 1)
    ungrouped = state(0)
    ungrouped.topic_name = "old"
    request = UpdateMetadataRequest(
        controller_id=1,
        ungrouped_partition_states=[ungrouped],
        live_brokers=[UpdateMetadataBroker(id=1, v0_host="h", v0_port=9)],
    )
    cache.update(request)
    assert cache.leader("old", 0) == (1, 0)
    assert cache.endpoint(1, "PLAINTEXT") == (1, "h", 9, None)


def test_pieces_change_with_the_topic_and_with_the_brokers() -> None:
    cache = filled(("t", ID, [state(0)]))
    assert answer(cache, 12, "t").topics[0].partitions[0].leader_epoch == 0
    first = cache.piece(cache.topics["t"], 12, "PLAINTEXT")
    assert cache.piece(cache.topics["t"], 12, "PLAINTEXT") is first
    cache.update(update(("t", ID, [state(0, epoch=3)])))
    assert answer(cache, 12, "t").topics[0].partitions[0].leader_epoch == 3
    cache.update(update(brokers=(broker(2),)))
    partition = answer(cache, 12, "t").topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (Errors.LEADER_NOT_AVAILABLE, -1)
    assert [b.node_id for b in answer(cache, 12, "t").brokers] == [2]


def test_listeners_and_absent_replicas_by_version() -> None:
    cache = MetadataCache("cluster", 1)
    brokers = (broker(1, "A", "B"), broker(2, "A"))
    cache.update(update(("t", ID, [state(0, leader=2, replicas=(1, 2, 3))]), brokers=brokers))

    def seen(version: int, listener: str) -> tuple[int, int, list[int]]:
        partition = answer(cache, version, "t", listener).topics[0].partitions[0]
        return partition.error_code, partition.leader_id, partition.replica_nodes

    assert seen(12, "A") == (Errors.NONE, 2, [1, 2, 3])
    assert seen(12, "B") == (Errors.LISTENER_NOT_FOUND, -1, [1, 2, 3])
    assert seen(5, "B") == (Errors.LEADER_NOT_AVAILABLE, -1, [1, 2, 3])
    assert seen(0, "A") == (Errors.REPLICA_NOT_AVAILABLE, 2, [1, 2])
    assert [(b.node_id, b.port) for b in answer(cache, 1, "t", "B").brokers] == [(1, 1001)]


def test_authorized_operations_are_part_of_the_piece() -> None:
    cache = filled(("t", ID, [state(0)]))
    topic = cache.topics["t"]
    assert cache.piece(topic, 8, "PLAINTEXT", 3576)[-4:] == (3576).to_bytes(4, "big")
    assert cache.piece(topic, 8, "PLAINTEXT", NOT_ASKED) != cache.piece(topic, 8, "PLAINTEXT", 3576)


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize("count", [1, 399, 400, 401, 1000])
async def test_a_large_topic_is_encoded_in_steps(version: int, count: int) -> None:
    cache = filled(("t", ID, [state(n) for n in range(count)]))
    topic = cache.topics["t"]
    at_once = cache.piece(topic, version, "PLAINTEXT", 3576)
    topic.pieces.clear()
    await cache.prepare(topic, version, "PLAINTEXT", 3576)
    assert list(topic.pieces.values()) == [at_once]


async def test_a_change_while_a_large_topic_is_encoded() -> None:
    cache = filled(("t", ID, [state(n) for n in range(1000)]))
    topic = cache.topics["t"]
    preparing = asyncio.ensure_future(cache.prepare(topic, 12, "PLAINTEXT"))
    await asyncio.sleep(0)
    cache.update(update(("t", ID, [state(5, epoch=9)]), brokers=(broker(1), broker(2))))
    await preparing
    prepared = topic.pieces[12, "PLAINTEXT", NOT_ASKED]
    topic.pieces.clear()
    assert prepared == cache.piece(topic, 12, "PLAINTEXT")
    assert answer(cache, 12, "t").topics[0].partitions[5].leader_epoch == 9


async def test_waiting_for_a_leader() -> None:
    cache = filled()

    def ready() -> bool:
        return cache.leader("t", 0) is not None

    waiting = asyncio.ensure_future(cache.wait_until(["t"], ready, 10))
    await asyncio.sleep(0)
    cache.update(update(("other", OTHER_ID, [state(0)])))
    await asyncio.sleep(0)
    assert not waiting.done()
    cache.update(update(("t", ID, [state(0)])))
    assert await waiting
    assert await cache.wait_until(["t"], ready, 0)
    assert not await cache.wait_until(["u"], lambda: False, 0.01)
    assert cache._waiting == {}


def test_who_lives_no_more_is_told_once() -> None:
    cache, gone = filled(), []
    cache.on_gone.append(gone.append)
    cache.update(update(brokers=(broker(1), broker(2), broker(3))))
    cache.update(update(brokers=(broker(1), broker(3, rack="r"))))
    cache.update(update(brokers=(broker(1), broker(3, rack="r"))))
    assert gone == [{2}]
