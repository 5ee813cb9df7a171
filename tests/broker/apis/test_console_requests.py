"""What consoles ask first: cluster, log directories, coordinators, elections, ACLs; recorded cases of Kafka 3.9.2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pybroker.broker.context import CloseConnection
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from pybroker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pybroker.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from pybroker.protocol.messages.describe_acls import DescribeAclsRequest
from pybroker.protocol.messages.describe_cluster import DescribeClusterRequest
from pybroker.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from pybroker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from pybroker.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from pybroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from pybroker.protocol.messages.init_producer_id import InitProducerIdRequest
from pybroker.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from pybroker.protocol.types import TopicPartition
from pybroker.storage.log_manager import DirectoryDescription, ReplicaDescription
from tests.broker.room import Room


async def create(room: Room, **topics: int) -> None:
    wanted = [CreatableTopic(name=name, num_partitions=n, replication_factor=1) for name, n in topics.items()]
    await room.call(CreateTopicsRequest(topics=wanted, timeout_ms=5000), 7)


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(room: Room, version: int) -> None:
    response = await room.call(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert (response.error_code, response.error_message, response.controller_id) == (0, None, 5)
    assert response.cluster_id == room.cache.cluster_id
    assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [(5, "127.0.0.1", 9092)]
    assert response.cluster_authorized_operations == 8096
    response = await room.call(DescribeClusterRequest(), version)
    assert response.cluster_authorized_operations == -2147483648


async def test_describe_controllers(room: Room) -> None:
    response = await room.call(DescribeClusterRequest(endpoint_type=2), 1)
    message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
    assert (response.error_code, response.error_message, response.endpoint_type) == (114, message, 1)
    assert (response.cluster_id, response.controller_id, response.brokers) == ("", -1, [])
    assert (await room.call(DescribeClusterRequest(endpoint_type=7), 1)).error_code == 115


async def test_describe_topic_partitions(room: Room) -> None:
    await create(room, a=2, b=2, c=1)

    async def page(limit: int, cursor: Cursor | None = None, *names: str) -> tuple[list[Any], Any]:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        response = await room.call(request, 0)
        found = [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in response.topics]
        following = response.next_cursor
        return found, following and (following.topic_name, following.partition_index)

    assert await page(2000) == ([("a", 0, [0, 1]), ("b", 0, [0, 1]), ("c", 0, [0])], None)
    assert await page(3) == ([("a", 0, [0, 1]), ("b", 0, [0])], ("b", 1))
    after = Cursor(topic_name="b", partition_index=1)
    assert await page(3, after) == ([("b", 0, [1]), ("c", 0, [0])], None)
    assert await page(2) == ([("a", 0, [0, 1])], ("b", 0))
    assert await page(1, None, "c", "nope") == ([("c", 0, [0])], ("nope", 0))
    assert await page(9, None, "nope", "a b") == ([("a b", 17, []), ("nope", 3, [])], None)
    assert await page(9, Cursor(topic_name="a", partition_index=-1), "a") == ([("a", 42, [])], None)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")])
    topic = (await room.call(request, 0)).topics[0]
    assert (topic.topic_id, topic.topic_authorized_operations) == (room.cache.topic_id("a"), 3576)
    assert (topic.partitions[0].eligible_leader_replicas, topic.partitions[0].last_known_elr) == ([], [])
    room.denied = {("DESCRIBE", "TOPIC")}
    assert await page(9, None, "a") == ([("a", 29, [])], None)
    assert await page(9) == ([], None)


@pytest.mark.parametrize("version", range(6))
async def test_describe_log_dirs(room: Room, version: int, tmp_path: Path) -> None:
    room.services.log_manager.describe = lambda: [
        DirectoryDescription(
            tmp_path,
            Errors.NONE,
            1000,
            500,
            [ReplicaDescription(TopicPartition("t", n), 10 * n, 0, False) for n in range(3)],
        ),
        DirectoryDescription(tmp_path / "broken", Errors.KAFKA_STORAGE_ERROR, -1, -1, []),
    ]
    response = await room.call(DescribeLogDirsRequest(topics=None), version)
    whole, broken = response.results
    assert (whole.error_code, whole.log_dir, broken.error_code) == (0, str(tmp_path), 56)
    assert [(p.partition_index, p.partition_size) for p in whole.topics[0].partitions] == [(0, 0), (1, 10), (2, 20)]
    assert (whole.total_bytes, whole.usable_bytes) == ((1000, 500) if version >= 4 else (-1, -1))
    wanted = [DescribableLogDirTopic(topic="t", partitions=[1]), DescribableLogDirTopic(topic="x", partitions=[0])]
    response = await room.call(DescribeLogDirsRequest(topics=wanted), version)
    assert [[p.partition_index for p in topic.partitions] for topic in response.results[0].topics] == [[1]]
    room.denied = {("DESCRIBE", "CLUSTER")}
    response = await room.call(DescribeLogDirsRequest(topics=None), version)
    assert (response.error_code, response.results) == (31 if version >= 3 else 0, [])


@pytest.mark.parametrize("version", range(7))
async def test_coordinators(room: Room, version: int) -> None:
    async def find(key_type: int) -> tuple[int, str | None, int, str, int]:
        request = FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=["g"])
        response = await room.call(request, version)
        found = response.coordinators[0] if version >= 4 else response
        return found.error_code, found.error_message, found.node_id, found.host, found.port

    message = "The coordinator is not available." if 1 <= version < 4 else ""
    assert await find(0) == (0, "NONE" if 1 <= version < 4 else "", 5, "127.0.0.1", 9092)
    assert len(room.cache.partitions("__consumer_offsets")) == 50
    if version >= 1:
        assert await find(1) == (15, message, -1, "", -1)
        assert (await find(9))[0] == 42
        assert (await find(2))[0] == (15 if version >= 6 else 42)


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id(room: Room, version: int) -> None:
    async def init(**fields: Any) -> tuple[int, int, int]:
        request = InitProducerIdRequest(**{"transactional_id": None, "transaction_timeout_ms": 60000} | fields)
        response = await room.call(request, version)
        return response.error_code, response.producer_id, response.producer_epoch

    assert await init() == (0, 0, 0)
    assert await init() == (0, 1, 0)
    assert await init(transactional_id="") == (42, -1, -1)
    for timeout in (0, -1, 900001):
        assert await init(transactional_id="t", transaction_timeout_ms=timeout) == (50, -1, -1)
    assert await init(transactional_id="t") == (15, -1, -1)
    if version >= 3:
        assert await init(producer_id=5) == (42, -1, -1)
        assert await init(producer_id=5, producer_epoch=0) == (0, 2, 0)


async def test_no_reassignments(room: Room) -> None:
    response = await room.call(ListPartitionReassignmentsRequest(topics=None), 0)
    assert (response.error_code, response.error_message, response.topics) == (0, "", [])
    await room.services.controller.stop()
    response = await room.call(ListPartitionReassignmentsRequest(topics=None), 0)
    assert (response.error_code, response.error_message) == (41, "This is not the correct controller for this cluster.")


@pytest.mark.parametrize("version", range(3))
async def test_elections(room: Room, version: int) -> None:
    await create(room, q=1)

    async def elect(election: int, *topics: str) -> tuple[int, list[tuple[str, int, int, str | None]]]:
        wanted = [TopicPartitions(topic=name, partitions=[0]) for name in topics] or None
        response = await room.call(ElectLeadersRequest(election_type=election, topic_partitions=wanted), version)
        return response.error_code, [
            (topic.topic, each.partition_id, each.error_code, each.error_message)
            for topic in response.replica_election_results
            for each in topic.partition_result
        ]

    unneeded = ("q", 0, 84, "Leader election not needed for topic partition.")
    assert await elect(0, "q", "nope") == (0, [("nope", 0, 3, "The partition does not exist."), unneeded])
    assert await elect(0) == (0, [])
    if version >= 1:
        assert await elect(1, "q") == (0, [unneeded])
        assert await elect(9, "q") == (-1, [("q", 0, -1, None)])


@pytest.mark.parametrize("version", range(4))
async def test_acls_without_an_authorizer(room: Room, version: int) -> None:
    anything: dict[str, Any] = {"pattern_type_filter": 3 if version == 0 else 1, "operation": 1, "permission_type": 1}
    described = await room.call(DescribeAclsRequest(resource_type_filter=1, **anything), version)
    assert (described.error_code, described.error_message) == (54, "No Authorizer is configured on the broker")
    creation = AclCreation(
        resource_type=2, resource_name="p", principal="User:a", host="*", operation=3, permission_type=3
    )
    created = await room.call(CreateAclsRequest(creations=[creation]), version)
    refused = (54, "No Authorizer is configured.")
    assert [(each.error_code, each.error_message) for each in created.results] == [refused]
    filters = [DeleteAclsFilter(resource_type_filter=1, **anything)]
    deleted = await room.call(DeleteAclsRequest(filters=filters), version)
    assert [(each.error_code, each.error_message) for each in deleted.filter_results] == [refused]
    with pytest.raises(CloseConnection):
        await room.call(DescribeAclsRequest(resource_type_filter=0, **anything), version)
    with pytest.raises(CloseConnection):
        await room.call(DeleteAclsRequest(filters=[DeleteAclsFilter(resource_type_filter=0, **anything)]), version)
