"""CreateTopics, DeleteTopics, CreatePartitions: the cases recorded with Apache Kafka 3.9.2 that need a whole broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from pybroker.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from pybroker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pybroker.protocol.uuids import ZERO_UUID
from tests.broker.room import Room

Results = list[tuple[str, int, str | None]]


async def create(room: Room, *topics: dict[str, Any], version: int = 7, **fields: Any) -> Any:
    plain: dict[str, Any] = {"name": "n", "num_partitions": 1, "replication_factor": 1}
    asked: dict[str, Any] = {"timeout_ms": 5000}
    wanted = [CreatableTopic(**plain | each) for each in topics]
    return await room.call(CreateTopicsRequest(topics=wanted, **asked | fields), version)


def results(response: Any) -> Results:
    return [(each.name, each.error_code, each.error_message) for each in response.topics]


async def delete(room: Room, version: int, **fields: Any) -> list[tuple[str | None, int]]:
    response = await room.call(DeleteTopicsRequest(**{"timeout_ms": 3000} | fields), version)
    return [(each.name, each.error_code) for each in response.responses]


async def test_created_when_answered(room: Room) -> None:
    response = await create(
        room, {"name": "t", "num_partitions": 2, "configs": [CreatableTopicConfig(name="retention.ms", value="77")]}
    )
    assert results(response) == [("t", 0, None)]
    topic = response.topics[0]
    assert topic.topic_id == room.cache.topic_id("t") != ZERO_UUID
    assert (topic.num_partitions, topic.replication_factor) == (2, 1)
    assert [each.leader for each in room.cache.partitions("t").values()] == [5, 5]
    settings = {each.name: each for each in topic.configs}
    assert len(settings) == 36
    assert list(settings)[:3] == [
        "compression.type",
        "remote.log.delete.on.disable",
        "leader.replication.throttled.replicas",
    ]
    assert (settings["retention.ms"].value, settings["retention.ms"].config_source) == ("77", 1)
    assert (settings["segment.bytes"].value, settings["segment.bytes"].config_source) == ("1073741824", 5)
    assert not any(each.read_only or each.is_sensitive for each in settings.values())


@pytest.mark.parametrize("version", range(8))
async def test_every_version(room: Room, version: int) -> None:
    response = await create(room, {"name": "t"}, {"name": "bad name"}, version=version)
    assert [(each.name, each.error_code) for each in response.topics] == [("t", 0), ("bad name", 17)]
    if version >= 5:
        assert response.topics[1].configs == []
        assert response.topics[1].num_partitions == -1


async def test_the_same_topic_twice(room: Room) -> None:
    message = "Found multiple entries for this topic."
    assert results(await create(room, {"name": "dup"}, {"name": "dup"}, {"name": "other"})) == [
        ("dup", 42, message),
        ("dup", 42, message),
        ("other", 0, None),
    ]
    assert "dup" not in room.cache


async def test_no_topics(room: Room) -> None:
    assert results(await create(room)) == []


async def test_name_of_the_metadata_log(room: Room) -> None:
    assert results(await create(room, {"name": "__cluster_metadata"})) == [
        ("__cluster_metadata", 42, "Creation of internal topic __cluster_metadata is prohibited.")
    ]


async def test_validate_only(room: Room) -> None:
    response = await create(room, {"name": "t", "num_partitions": 3}, validate_only=True)
    assert results(response) == [("t", 0, None)]
    assert (response.topics[0].topic_id, response.topics[0].num_partitions) == (ZERO_UUID, 3)
    assert "t" not in room.cache


@pytest.mark.parametrize("timeout", [0, -1])
async def test_no_time_to_wait(room: Room, timeout: int) -> None:
    response = await create(room, {"name": "t"}, timeout_ms=timeout)
    assert results(response) == [("t", 7, None)]
    assert response.topics[0].topic_id != ZERO_UUID
    assert response.topics[0].configs == []
    assert results(await create(room, {"name": "t"})) == [("t", 36, "Topic 't' already exists.")]


@pytest.mark.parametrize("brokers", [[77], []])
async def test_partitions_that_find_no_leader(room: Room, brokers: list[int]) -> None:
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=brokers)
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": [assignment]}
    assert results(await create(room, topic, timeout_ms=100)) == [("t", 7, None)]


async def test_only_the_controller_creates_and_deletes(room: Room) -> None:
    await room.services.controller.stop()
    assert results(await create(room, {"name": "t"})) == [("t", 41, "")]
    assert await delete(room, 5, topic_names=["t"]) == [("t", 41)]


async def test_without_rights(room: Room) -> None:
    room.denied = {("CREATE", "CLUSTER"), ("CREATE", "TOPIC"), ("DESCRIBE_CONFIGS", "TOPIC")}
    assert results(await create(room, {"name": "t"})) == [("t", 29, "Authorization failed.")]
    room.denied = {("DESCRIBE_CONFIGS", "TOPIC")}
    response = await create(room, {"name": "t"})
    assert results(response) == [("t", 0, None)]
    assert (response.topics[0].topic_config_error_code, response.topics[0].num_partitions) == (29, -1)


async def test_many_partitions_at_once(room: Room) -> None:
    many = {"num_partitions": 5000}
    both = await create(room, {"name": "a"} | many, {"name": "b"} | many, timeout_ms=60_000)
    assert [code for _, code, _ in results(both)] == [0, 0]
    assert room.cache.partition_count == 10_000
    refused = results(await create(room, {"name": "c", "num_partitions": 2**31 - 1}))
    assert refused == [("c", 44, "Excessively large number of partitions per request.")]


async def test_delete(room: Room) -> None:
    await create(room, {"name": "good1"}, {"name": "def1"})
    good_id = room.cache.topic_id("def1")
    assert await delete(room, 1, topic_names=["nope"]) == [("nope", 3)]
    assert await delete(room, 5, topic_names=["__consumer_offsets_x", ""]) == [("__consumer_offsets_x", 3), ("", 3)]
    assert await delete(room, 6, topics=[DeleteTopicState(topic_id=b"\7" * 16)]) == [(None, 100)]
    assert await delete(room, 6, topics=[DeleteTopicState(name="good1", topic_id=b"\7" * 16)]) == [("good1", 42)]
    assert await delete(room, 6, topics=[DeleteTopicState()]) == [(None, 29)]
    twice = [DeleteTopicState(name="good1"), DeleteTopicState(name="good1")]
    assert await delete(room, 6, topics=twice) == [("good1", 0), ("good1", 0)]
    assert "good1" not in room.cache
    assert await delete(room, 6, topics=[DeleteTopicState(name="good1")]) == [("good1", 3)]
    assert await delete(room, 6, topics=[DeleteTopicState(topic_id=good_id)]) == [("def1", 0)]


async def test_delete_without_waiting(room: Room) -> None:
    await create(room, {"name": "def1"})
    room.channel.open.clear()
    assert await delete(room, 5, topic_names=["def1"], timeout_ms=0) == [("def1", 7)]
    assert results(await create(room, {"name": "def1"})) == [("def1", 36, "Topic 'def1' already exists.")]
    # Gone from the metadata, the nodes are still there:
    room.cache.topics.clear()
    assert results(await create(room, {"name": "def1"})) == [("def1", 36, "Topic 'def1' is marked for deletion.")]


async def test_created_again_after_the_deletion(room: Room) -> None:
    await create(room, {"name": "t"})
    first = room.cache.topic_id("t")
    assert await delete(room, 6, topics=[DeleteTopicState(name="t")]) == [("t", 0)]
    for _ in range(1000):
        response = await create(room, {"name": "t"})
        if results(response)[0][1] == 0:
            break
        await asyncio.sleep(0.001)
    assert results(response) == [("t", 0, None)]
    assert response.topics[0].topic_id != first


async def enlarge(room: Room, *topics: dict[str, Any], version: int = 3, **fields: Any) -> Results:
    plain: dict[str, Any] = {"assignments": None}
    asked: dict[str, Any] = {"timeout_ms": 3000}
    wanted = [CreatePartitionsTopic(**plain | each) for each in topics]
    response = await room.call(CreatePartitionsRequest(topics=wanted, **asked | fields), version)
    return [(each.name, each.error_code, each.error_message) for each in response.results]


async def test_create_partitions(room: Room) -> None:
    await create(room, {"name": "q"})
    assert await enlarge(room, {"name": "q", "count": 1}) == [("q", 37, "Topic already has 1 partitions.")]
    assert await enlarge(room, {"name": "nope", "count": 3}) == [("nope", 3, "The topic 'nope' does not exist.")]
    assert await enlarge(room, {"name": "q", "count": 2}, validate_only=True) == [("q", 0, None)]
    assert len(room.cache.partitions("q")) == 1
    assert await enlarge(room, {"name": "q", "count": 2}) == [("q", 0, None)]
    assert [each.leader for each in room.cache.partitions("q").values()] == [5, 5]
    assert await enlarge(room, {"name": "q", "count": 3}, {"name": "q", "count": 4}) == [
        ("q", 42, "Duplicate topic in request.")
    ]
    assert await enlarge(room, {"name": "q", "count": 3}, timeout_ms=0) == [("q", 7, None)]
