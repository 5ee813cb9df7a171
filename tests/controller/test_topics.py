from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from pybroker.config import BrokerConfig
from pybroker.controller import paths, topics
from pybroker.controller.configs import ConfigRepository
from pybroker.controller.embedded_store import EmbeddedStore
from pybroker.controller.topics import CreatedTopic, NewTopic, TopicWriter
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.uuids import ZERO_UUID, uuid_from_text


class Cluster:
    """A cluster of brokers without racks in which some topics are known."""

    def __init__(self, *brokers: int) -> None:
        self.brokers = brokers
        self.topics: set[str] = set()

    def __contains__(self, topic: str) -> bool:
        return topic in self.topics

    def racks(self) -> dict[int, str | None]:
        return dict.fromkeys(self.brokers)


class Room:
    """A writer and what it writes to."""

    def __init__(self, store: EmbeddedStore, brokers: tuple[int, ...] = (5,), **settings: str) -> None:
        self.store = store
        self.cluster = Cluster(*brokers)
        self.config = BrokerConfig.of({name.replace("_", "."): value for name, value in settings.items()})
        self.configs = ConfigRepository(store, ManualClock())
        self.writer = TopicWriter(store, self.cluster, self.config, self.configs, Random(1))

    async def create(self, topic: NewTopic, *, validate_only: bool = False) -> CreatedTopic | KafkaError:
        return (await self.writer.create([topic], validate_only=validate_only))[topic.name]

    async def node(self, name: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((await self.store.get(f"/brokers/topics/{name}"))[0])
        return found


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / "metadata")
    for path in paths.PERSISTENT:
        await opened.create(path, parents=True)
    yield opened
    await opened.close()


def refusal(result: CreatedTopic | KafkaError) -> tuple[int, str | None]:
    assert isinstance(result, KafkaError), result
    return int(result.code), result.message


async def test_a_new_topic_looks_as_kafkas(store: EmbeddedStore) -> None:
    room = Room(store)
    created = await room.create(NewTopic("t", 2, 1, configs=[("retention.ms", "86400000")]))
    assert isinstance(created, CreatedTopic)
    assert (await store.get("/config/topics/t"))[0] == b'{"version":1,"config":{"retention.ms":"86400000"}}'
    node = await room.node("t")
    assert list(node) == ["partitions", "topic_id", "adding_replicas", "removing_replicas", "version"]
    assert node["partitions"] == {"0": [5], "1": [5]}
    assert node["version"] == 3
    assert uuid_from_text(str(node["topic_id"])) == created.topic_id
    config, topic = await store.get_many(["/config/topics/t", "/brokers/topics/t"])
    assert config is not None and topic is not None and config[1].czxid <= topic[1].czxid
    assert room.configs.topic("t") == {"retention.ms": "86400000"}
    assert await store.children("/config/changes") == []


async def test_a_protocol_older_than_topic_ids_has_none(store: EmbeddedStore) -> None:
    room = Room(store)
    room.writer = TopicWriter(store, room.cluster, room.config, room.configs, Random(1), topic_ids=False)
    created = await room.create(NewTopic("t", 1, 1))
    assert isinstance(created, CreatedTopic) and created.topic_id == ZERO_UUID
    assert "topic_id" not in await room.node("t")
    await room.writer.add_partitions("t", 2, None)
    assert "topic_id" not in await room.node("t")


async def test_a_topic_without_settings_has_a_config_node_too(store: EmbeddedStore) -> None:
    room = Room(store)
    await room.create(NewTopic("t", 1, 1))
    assert (await store.get("/config/topics/t"))[0] == b'{"version":1,"config":{}}'


async def test_defaults_come_from_the_broker(store: EmbeddedStore) -> None:
    room = Room(store, (1, 2, 3), num_partitions="4", default_replication_factor="2")
    created = await room.create(NewTopic("t"))
    assert isinstance(created, CreatedTopic)
    assert len(created.assignment) == 4
    assert {len(replicas) for replicas in created.assignment.values()} == {2}


# Cases recorded with Apache Kafka 3.9.2; the broker's id is 5.
ASSIGNED = {"partitions": -1, "replication_factor": -1}
GAPS = "partitions should be a consecutive 0-based integer sequence"
REFUSED: list[tuple[dict[str, object], int, str]] = [
    ({"name": ""}, 17, "Topic name is invalid: the empty string is not allowed"),
    ({"name": "col_x"}, 17, "Topic 'col_x' collides with existing topics: col.x"),
    ({"partitions": 0}, 37, "Number of partitions must be larger than 0."),
    ({"partitions": -2}, 37, "Number of partitions must be larger than 0."),
    ({"replication_factor": 0}, 38, "Replication factor must be larger than 0."),
    ({"replication_factor": -2}, 38, "Replication factor must be larger than 0."),
    ({"replication_factor": 3}, 38, "Replication factor: 3 larger than available brokers: 1."),
    ({"configs": [("nonesuch", "1")]}, 40, "Unknown topic config name: nonesuch"),
    (
        {"configs": [("retention.ms", "abc")]},
        40,
        "Invalid value abc for configuration retention.ms: Not a number of type LONG",
    ),
    ({"configs": [("retention.ms", None)]}, 40, "Null value not supported for topic configs: retention.ms"),
    (
        {"configs": [("min.compaction.lag.ms", "100"), ("max.compaction.lag.ms", "50")]},
        40,
        "conflict topic config setting min.compaction.lag.ms (100) > max.compaction.lag.ms (50)",
    ),
    (
        {"assignments": [(0, [5])]},
        42,
        "Both numPartitions or replicationFactor and replicasAssignments were set. "
        "Both cannot be used at the same time.",
    ),
    ({"assignments": [(1, [5])], **ASSIGNED}, 39, GAPS),
    ({"assignments": [(-1, [5]), (0, [5])], **ASSIGNED}, 39, GAPS),
    (
        {"assignments": [(0, [5, 5])], **ASSIGNED},
        39,
        "Duplicate replica assignment found: HashMap(0 -> ArrayBuffer(5, 5))",
    ),
    (
        {"assignments": [(0, [5]), (1, [5, 6])], **ASSIGNED},
        39,
        "All partitions should have the same number of replicas",
    ),
    ({"partitions": 10_001}, 44, "Excessively large number of partitions per request."),
    ({"partitions": 2**31 - 1}, 44, "Excessively large number of partitions per request."),
]  # fmt: skip


@pytest.mark.parametrize(("wish", "code", "message"), REFUSED, ids=[str(case[0])[:60] for case in REFUSED])
@pytest.mark.parametrize("validate_only", [False, True])
async def test_refused_as_recorded(
    store: EmbeddedStore, wish: dict[str, object], code: int, message: str, validate_only: bool
) -> None:
    room = Room(store)
    await room.create(NewTopic("col.x", 1, 1))
    topic = NewTopic(**{"name": "n", "partitions": 1, "replication_factor": 1} | wish)  # type: ignore[arg-type]
    assert refusal(await room.create(topic, validate_only=validate_only)) == (code, message)
    assert await store.children("/brokers/topics") == ["col.x"]
    assert await store.children("/config/topics") == ["col.x"]


async def test_allowed_as_recorded(store: EmbeddedStore) -> None:
    room = Room(store)
    same_config_twice = NewTopic("twice", 1, 1, configs=[("retention.ms", "1000"), ("retention.ms", "2000")])
    created = await room.create(same_config_twice)
    assert isinstance(created, CreatedTopic)
    assert created.configs == {"retention.ms": "2000"}
    allowed: dict[str, list[tuple[int, list[int]]]] = {
        "double": [(0, [5]), (0, [5])],
        "unknown": [(0, [77])],
        "empty": [(0, [])],
    }
    for name, assignments in allowed.items():
        created = await room.create(NewTopic(name, assignments=assignments))
        assert isinstance(created, CreatedTopic)
        assert created.assignment == {0: assignments[0][1]}


async def test_existing_topics(store: EmbeddedStore) -> None:
    room = Room(store)
    room.cluster.topics.add("known")
    assert refusal(await room.create(NewTopic("known", 0))) == (36, "Topic 'known' already exists.")
    await room.create(NewTopic("t", 1, 1))
    before = await room.node("t")
    assert refusal(await room.create(NewTopic("t", 1, 1, configs=[("retention.ms", "5")]))) == (
        36,
        "Topic 't' already exists.",
    )
    assert await room.node("t") == before
    assert room.configs.topic("t") == {}
    await room.writer.delete("t")
    assert refusal(await room.create(NewTopic("t", 1, 1))) == (36, "Topic 't' is marked for deletion.")


async def test_settings_left_behind_are_replaced(store: EmbeddedStore) -> None:
    room = Room(store)
    await store.create("/config/topics/t", paths.encode_config({"retention.ms": "5"}))
    assert isinstance(await room.create(NewTopic("t", 1, 1)), CreatedTopic)
    assert (await store.get("/config/topics/t"))[0] == b'{"version":1,"config":{}}'


async def test_two_requests_at_once_make_one_topic(store: EmbeddedStore) -> None:
    room = Room(store)
    topic = NewTopic("t", 1, 1)
    results = await asyncio.gather(room.create(topic), room.create(topic))
    assert sorted(isinstance(result, CreatedTopic) for result in results) == [False, True]
    assert room.writer._creating == set()


async def test_each_topic_of_a_request_stands_alone(store: EmbeddedStore) -> None:
    room = Room(store)
    topics = [NewTopic("good", 1, 1), NewTopic("bad name", 1, 1), NewTopic("a.b", 1, 1), NewTopic("a_b", 1, 1)]
    results = await room.writer.create(topics)
    assert {name: isinstance(result, CreatedTopic) for name, result in results.items()} == {
        "good": True,
        "bad name": False,
        "a.b": True,
        "a_b": False,
    }


async def test_validate_only(store: EmbeddedStore) -> None:
    room = Room(store)
    validated = await room.create(NewTopic("t", 2, 1), validate_only=True)
    assert isinstance(validated, CreatedTopic)
    assert (validated.topic_id, validated.assignment) == (ZERO_UUID, {0: [5], 1: [5]})
    assert await store.children("/brokers/topics") == []


async def test_auto_creation(store: EmbeddedStore, caplog: pytest.LogCaptureFixture) -> None:
    room = Room(store, transaction_state_log_replication_factor="3")
    names = ["a", "b c", "__consumer_offsets", "__transaction_state"]
    assert await room.writer.auto_create(names) == {
        "a": Errors.LEADER_NOT_AVAILABLE,
        "b c": Errors.INVALID_TOPIC_EXCEPTION,
        "__consumer_offsets": Errors.LEADER_NOT_AVAILABLE,
        "__transaction_state": Errors.INVALID_REPLICATION_FACTOR,
    }
    assert await room.writer.auto_create(["a"]) == {"a": Errors.LEADER_NOT_AVAILABLE}
    assert "transaction.state.log.replication.factor" in caplog.text
    offsets = await room.node("__consumer_offsets")
    assert len(offsets["partitions"]) == 50  # type: ignore[arg-type]
    assert room.configs.topic("__consumer_offsets") == {
        "compression.type": "producer",
        "cleanup.policy": "compact",
        "segment.bytes": "104857600",
    }


async def test_auto_creation_by_a_store_that_does_not_answer_goes_on_without_who_asked(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(store)
    reachable, asked, get_many = asyncio.Event(), 0, store.get_many

    async def late(paths: Sequence[str]) -> object:
        nonlocal asked
        asked += 1
        await reachable.wait()
        return await get_many(paths)

    monkeypatch.setattr(store, "get_many", late)
    monkeypatch.setattr(topics, "AUTO_CREATION_SECONDS", 0.001)
    for names in (["a"], ["a"], ["b", "b", "a"]):
        assert set((await room.writer.auto_create(names)).values()) == {Errors.LEADER_NOT_AVAILABLE}
    assert asked == 2, "one creation for a name, however often it is asked for"
    monkeypatch.setattr(topics, "MAX_PARTITIONS_PER_REQUEST", 2)
    assert await room.writer.auto_create(["c"]) == {"c": Errors.LEADER_NOT_AVAILABLE}
    assert asked == 2, "too many are waited for already"
    reachable.set()
    for name in ("a", "b"):
        while await store.exists(paths.topic(name)) is None:
            await asyncio.sleep(0)


async def test_a_topic_of_a_cluster_of_which_little_is_known_yet(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"offsets_topic_replication_factor": "3"}
    await Room(store, (1, 2, 3), **settings).writer.auto_create(["__consumer_offsets"])
    started = Room(store, (1, 2), **settings)
    answers = await started.writer.auto_create(["__consumer_offsets"])
    assert answers == {"__consumer_offsets": Errors.LEADER_NOT_AVAILABLE}
    assert not caplog.records


async def test_adding_partitions(store: EmbeddedStore) -> None:
    room = Room(store, (5, 6))
    await room.create(NewTopic("q", assignments=[(0, [6])]))
    assert await room.writer.add_partitions("q", 3, None, validate_only=True) == {0: [6], 1: [5], 2: [6]}
    assert (await room.node("q"))["partitions"] == {"0": [6]}
    before = (await room.node("q"))["topic_id"]
    assert await room.writer.add_partitions("q", 3, [[5], [5]]) == {0: [6], 1: [5], 2: [5]}
    node = await room.node("q")
    assert (node["partitions"], node["topic_id"]) == ({"0": [6], "1": [5], "2": [5]}, before)


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code", "message"),
    [
        ("q", 1, None, 37, "Topic already has 1 partitions."),
        ("q", 0, None, 37, "Topic currently has 1 partitions, which is higher than the requested 0."),
        ("q", -1, None, 37, "Topic currently has 1 partitions, which is higher than the requested -1."),
        ("nope", 3, None, 3, "The topic 'nope' does not exist."),
        ("a/b", 3, None, 3, "The topic 'a/b' does not exist."),
        ("", 3, None, 3, "The topic '' does not exist."),
        ("q", 3, [[5]], 39, "Increasing the number of partitions by 2 but 1 assignments provided."),
        ("q", 2, [[88]], 39, "Unknown broker(s) in replica assignment: 88."),
        ("q", 2, [[5, 6]], 39, "Unknown broker(s) in replica assignment: 6."),
        ("q", 2, [[]], 39, "Cannot have replication factor of 0 for partition id 1."),
        ("q", 2, [[5, 5]], 39, "Duplicate brokers not allowed in replica assignment: 5, 5 for partition id 1."),
        ("q", 2**31 - 1, None, 44, "Excessively large number of partitions per request."),
    ],
)
async def test_partitions_refused_as_recorded(
    store: EmbeddedStore, name: str, count: int, assignments: list[list[int]] | None, code: int, message: str
) -> None:
    room = Room(store)
    await room.create(NewTopic("q", 1, 1))
    with pytest.raises(KafkaError) as refused:
        await room.writer.add_partitions(name, count, assignments)
    assert (refused.value.code, refused.value.message) == (code, message)
    assert (await room.node("q"))["partitions"] == {"0": [5]}


async def test_no_partitions_while_a_topic_is_moved_or_deleted(store: EmbeddedStore) -> None:
    room = Room(store)
    moving = paths.TopicNode(bytes(16), {0: [6, 5]}, {0: [6]}, {0: [5]})
    await store.create("/brokers/topics/moving", paths.encode_topic(moving))
    with pytest.raises(KafkaError) as refused:
        await room.writer.add_partitions("moving", 3, None)
    assert refused.value.code == Errors.REASSIGNMENT_IN_PROGRESS
    await room.create(NewTopic("t", 1, 1))
    await room.writer.delete("t")
    with pytest.raises(KafkaError) as refused:
        await room.writer.add_partitions("t", 3, None)
    assert (refused.value.code, refused.value.message) == (17, "The topic is queued for deletion.")


async def test_deleting(store: EmbeddedStore) -> None:
    room = Room(store)
    await room.create(NewTopic("t", 1, 1))
    await room.writer.delete("t")
    await room.writer.delete("t")
    assert await store.children("/admin/delete_topics") == ["t"]
    assert await store.exists("/brokers/topics/t") is not None
    with pytest.raises(KafkaError) as refused:
        await room.writer.delete("nope")
    assert refused.value.code == Errors.UNKNOWN_TOPIC_OR_PARTITION
