"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: recorded cases of Apache Kafka 3.9.2."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from pybroker.protocol.messages import alter_configs, incremental_alter_configs
from pybroker.protocol.messages.alter_configs import AlterConfigsRequest
from pybroker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pybroker.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pybroker.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from pybroker.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.broker.room import Room

TOPIC, BROKER, LOGGER, METRICS = 2, 4, 8, 16
SET, DELETE, APPEND, SUBTRACT = range(4)
PREFIX = "Invalid config value for resource ConfigResource(type=TOPIC, name='q'): "
NUMBER = "Invalid value abc for configuration retention.ms: Not a number of type LONG"
MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)


@pytest_asyncio.fixture(autouse=True)
async def topic(room: Room) -> AsyncIterator[None]:
    wanted = CreatableTopic(name="q", num_partitions=1, replication_factor=1, configs=[])
    await room.call(CreateTopicsRequest(topics=[wanted], timeout_ms=5000), 7)
    yield


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    logger = logging.getLogger("pybroker.broker.kafka_apis")
    before = logger.level
    yield
    logger.setLevel(before)


async def change(
    room: Room, kind: int, name: str, *changes: tuple[str, int, str | None], version: int = 1, **fields: Any
) -> tuple[int, str | None]:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )
    response = await room.call(IncrementalAlterConfigsRequest(resources=[resource], **fields), version)
    answer = response.responses[0]
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer.error_code, answer.error_message


async def describe(
    room: Room, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **fields: Any
) -> tuple[int, str, list[tuple[str, str | None, int, int]]]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    response = await room.call(DescribeConfigsRequest(resources=[resource], **fields), version)
    result = response.results[0]
    settings = [(each.name, each.value, each.config_source, each.config_type) for each in result.configs]
    return result.error_code, result.error_message, settings


async def value_of(room: Room, kind: int, name: str, key: str) -> tuple[str | None, int]:
    _, _, settings = await describe(room, kind, name, [key])
    return settings[0][1], settings[0][2]


REFUSED: list[tuple[str, int, str, list[tuple[str, int, str | None]], int, str | None]] = [
    ("bad number", TOPIC, "q", [("retention.ms", SET, "abc")], 40, PREFIX + NUMBER),
    ("unknown name", TOPIC, "q", [("nonesuch", SET, "1")], 40, "Unknown topic config name: nonesuch"),
    ("set with null", TOPIC, "q", [("retention.ms", SET, None)], 42, "Null value not supported for : retention.ms"),
    ("operation 9", TOPIC, "q", [("retention.ms", 9, "1")], -1, None),
    (
        "append to a non-list",
        TOPIC,
        "q",
        [("retention.ms", APPEND, "1")],
        40,
        "Config value append is not allowed for config key: retention.ms",
    ),
    (
        "same name twice",
        TOPIC,
        "q",
        [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
        42,
        "Error due to duplicate config keys",
    ),
    ("unknown topic", TOPIC, "nope", [("retention.ms", SET, "1")], 3, "The topic 'nope' does not exist."),
    ("empty topic", TOPIC, "", [("retention.ms", SET, "1")], 42, "Default topic resources are not allowed."),
    (
        "read-only",
        BROKER,
        "5",
        [("broker.id", SET, "9")],
        42,
        "Cannot update these configs dynamically: Set(broker.id)",
    ),
    (
        "unknown broker",
        BROKER,
        "99",
        [("log.cleaner.threads", SET, "1")],
        42,
        "Unexpected broker id, expected 5, but received 99",
    ),
    ("not a number", BROKER, "x", [("log.cleaner.threads", SET, "1")], 42, "Node id must be an integer, but it is: x"),
    ("type 99", 99, "x", [], 42, "Unknown resource type 99"),
    ("logger", LOGGER, "5", [("nonesuch.x", SET, "DEBUG")], 40, "Logger nonesuch.x does not exist!"),
    (
        "level",
        LOGGER,
        "5",
        [("kafka.server.KafkaApis", SET, "LOUD")],
        40,
        "Cannot set the log level of kafka.server.KafkaApis to LOUD as it is not a supported log level. "
        "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
    ),
    (
        "root unset",
        LOGGER,
        "5",
        [("root", DELETE, None)],
        42,
        "Removing the log level of the root logger is not allowed",
    ),
    (
        "append to a logger",
        LOGGER,
        "5",
        [("root", APPEND, "DEBUG")],
        42,
        "APPEND operation is not allowed for the BROKER_LOGGER resource",
    ),
    (
        "client metrics",
        METRICS,
        "m",
        [("interval.ms", SET, "100")],
        42,
        "AlterConfigs is only supported for topics and brokers, but resource type is CLIENT_METRICS",
    ),
]


@pytest.mark.parametrize(("kind", "name", "changes", "code", "message"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])  # fmt: skip # noqa: E501
async def test_changes_refused_as_recorded(
    room: Room, kind: int, name: str, changes: list[tuple[str, int, str | None]], code: int, message: str | None
) -> None:
    assert await change(room, kind, name, *changes) == (code, message)
    assert await room.services.store.children("/config/changes") == []


async def test_changing_a_topic(room: Room) -> None:
    assert await change(room, TOPIC, "q", ("retention.ms", SET, "5000")) == (0, None)
    assert await change(room, TOPIC, "q", ("cleanup.policy", APPEND, "compact")) == (0, None)
    assert await change(room, TOPIC, "q", ("cleanup.policy", SUBTRACT, "zzz")) == (0, None)
    assert await change(room, TOPIC, "q", ("segment.bytes", DELETE, None)) == (0, None)
    assert await change(room, TOPIC, "q", ("retention.ms", SET, "7"), validate_only=True) == (0, None)
    assert await describe(room, TOPIC, "q", ["retention.ms", "cleanup.policy"]) == (
        0,
        "",
        [("cleanup.policy", "delete,compact", 1, 7), ("retention.ms", "5000", 1, 5)],
    )
    assert await change(room, TOPIC, "q", ("cleanup.policy", SUBTRACT, "delete"), version=0) == (0, None)
    assert await value_of(room, TOPIC, "q", "cleanup.policy") == ("compact", 1)
    assert await change(room, TOPIC, "q", ("retention.ms", DELETE, None)) == (0, None)
    assert await value_of(room, TOPIC, "q", "retention.ms") == ("604800000", 5)


async def test_the_same_resource_twice(room: Room) -> None:
    resources = [
        incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name="q", configs=[])
        for _ in range(2)
    ]
    response = await room.call(IncrementalAlterConfigsRequest(resources=resources), 1)
    refused = (42, "Each resource must appear at most once.")
    assert [(each.error_code, each.error_message) for each in response.responses] == [refused, refused]


async def test_broker_settings_take_effect_at_once(room: Room) -> None:
    config = room.services.config
    changed: list[frozenset[str]] = []
    config.on_change(changed.append)
    assert await change(room, BROKER, "", ("log.retention.ms", SET, "600000000")) == (0, None)
    assert config.int("log.retention.ms") == 600000000
    assert await change(room, BROKER, "5", ("message.max.bytes", SET, "5000")) == (0, None)
    assert config.int("message.max.bytes") == 5000
    assert changed == [frozenset({"log.retention.ms"}), frozenset({"message.max.bytes"})]
    assert await describe(room, BROKER, "") == (0, "", [("log.retention.ms", "600000000", 3, 5)])
    assert await value_of(room, BROKER, "5", "message.max.bytes") == ("5000", 2)
    # A topic inherits them, and says from where:
    assert await value_of(room, TOPIC, "q", "retention.ms") == ("600000000", 3)
    assert await value_of(room, TOPIC, "q", "max.message.bytes") == ("5000", 2)
    assert await change(room, BROKER, "", ("log.retention.ms", DELETE, None)) == (0, None)
    assert config.opt_int("log.retention.ms") is None


async def test_bad_broker_values(room: Room) -> None:
    code, message = await change(room, BROKER, "5", ("message.max.bytes", SET, "abc"))
    assert (code, message) == (42, "Invalid value abc for configuration message.max.bytes: Not a number of type INT")
    code, message = await change(room, BROKER, "", ("advertised.listeners", SET, "PLAINTEXT://h:1"))
    assert code == 42 and message is not None and "broker id must be specified" in message


async def test_loggers(room: Room) -> None:
    assert (await describe(room, LOGGER, "5", ["root"]))[0] == 0
    assert await change(room, LOGGER, "5", ("kafka.server.KafkaApis", SET, "TRACE"), validate_only=True) == (0, None)
    assert logging.getLogger("pybroker.broker.kafka_apis").level != 5
    assert await change(room, LOGGER, "5", ("kafka.server.KafkaApis", SET, "DEBUG")) == (0, None)
    assert logging.getLogger("pybroker.broker.kafka_apis").level == logging.DEBUG
    assert await describe(room, LOGGER, "5", ["kafka.server.KafkaApis"]) == (
        0,
        "",
        [("kafka.server.KafkaApis", "DEBUG", 6, 0)],
    )
    assert await change(room, LOGGER, "5", ("kafka.server.KafkaApis", DELETE, None)) == (0, None)
    assert logging.getLogger("pybroker.broker.kafka_apis").level == logging.NOTSET


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "nope", 3, ""),
        (TOPIC, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "abc", 42, "Broker id must be an integer, but it is: abc"),
        (BROKER, "99", 42, "Unexpected broker id, expected 5 or empty string, but received 99"),
        (LOGGER, "", 42, "Broker id must not be empty"),
        (LOGGER, "6", 42, "Unexpected broker id, expected 5 but received 6"),
        (99, "x", 42, MALFORMED),
        (0, "x", 42, MALFORMED),
    ],
)
async def test_descriptions_refused_as_recorded(room: Room, kind: int, name: str, code: int, message: str) -> None:
    assert await describe(room, kind, name) == (code, message, [])


@pytest.mark.parametrize("version", range(5))
async def test_describing_in_every_version(room: Room, version: int) -> None:
    code, message, settings = await describe(room, TOPIC, "q", [], version, include_synonyms=version >= 1)
    assert (code, message, len(settings)) == (0, "", 36)
    assert await describe(room, TOPIC, "q", ["zzz"], version) == (0, "", [])


async def test_synonyms_and_documentation(room: Room) -> None:
    await change(room, TOPIC, "q", ("segment.bytes", SET, "1048576"))
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="q", configuration_keys=["segment.bytes"])
    for asked in (False, True):
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=asked, include_documentation=asked)
        setting = (await room.call(request, 4)).results[0].configs[0]
        synonyms = [(each.name, each.value, each.source) for each in setting.synonyms]
        expected = [("segment.bytes", "1048576", 1), ("log.segment.bytes", "1073741824", 5)]
        assert synonyms == (expected if asked else [])
        assert bool(setting.documentation) is asked


async def replace(room: Room, kind: int, name: str, *settings: tuple[str, str | None]) -> tuple[int, str | None]:
    resource = alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=key, value=value) for key, value in settings],
    )
    answer = (await room.call(AlterConfigsRequest(resources=[resource]), 2)).responses[0]
    return answer.error_code, answer.error_message


async def test_alter_configs(room: Room) -> None:
    await change(room, TOPIC, "q", ("segment.bytes", SET, "1048576"))
    assert await replace(room, TOPIC, "q", ("retention.ms", "6000")) == (0, None)
    assert dict(room.services.configs.topic("q")) == {"retention.ms": "6000"}
    null = "Null value not supported for : retention.ms"
    assert await replace(room, TOPIC, "q", ("retention.ms", None)) == (42, null)
    assert await replace(room, TOPIC, "q", ("zzz", "1")) == (40, "Unknown topic config name: zzz")
    assert await replace(room, TOPIC, "q", ("retention.ms", "abc")) == (40, PREFIX + NUMBER)
    assert await replace(room, TOPIC, "nope") == (3, "The topic 'nope' does not exist.")
    assert await replace(room, LOGGER, "5", ("root", "INFO")) == (42, "Unknown resource type 8")
    assert await replace(room, BROKER, "5", ("message.max.bytes", "7000")) == (0, None)
    assert room.services.config.int("message.max.bytes") == 7000
    assert await replace(room, BROKER, "5") == (0, None)
    assert room.services.config.int("message.max.bytes") == 1048588


async def test_without_rights(room: Room) -> None:
    room.denied = {(operation, kind) for operation in ("ALTER_CONFIGS", "DESCRIBE_CONFIGS") for kind in ("TOPIC", "CLUSTER")}  # fmt: skip # noqa: E501
    assert await change(room, TOPIC, "q", ("retention.ms", SET, "1")) == (29, None)
    assert await describe(room, TOPIC, "q") == (29, "Topic authorization failed.", [])
    assert await describe(room, BROKER, "5") == (31, "Cluster authorization failed.", [])


async def test_listing(room: Room) -> None:
    async def listed(version: int, *types: int) -> tuple[int, list[tuple[str, int]]]:
        response = await room.call(ListConfigResourcesRequest(resource_types=list(types)), version)
        return response.error_code, [(each.resource_name, each.resource_type) for each in response.config_resources]

    assert await listed(1) == (0, [("5", 8), ("5", 4), ("q", 2)])
    assert await listed(1, 2, 16) == (0, [("q", 2)])
    assert await listed(1, 99) == (35, [])
    assert await listed(0) == (0, [])


async def test_many_resources_do_not_hold_the_loop(room: Room) -> None:
    """A console asks for the settings of all topics at once."""
    loop, turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        handle = loop.call_later(0.001, turn)
        ticking.append(handle)

    ticking: list[asyncio.TimerHandle] = []
    turn()
    resources = [DescribeConfigsResource(resource_type=TOPIC, resource_name="q", configuration_keys=None)] * 300
    response = await room.call(DescribeConfigsRequest(resources=resources), 4)
    ticking[-1].cancel()
    assert turns > 5
    assert [len(result.configs) for result in response.results] == [len(response.results[0].configs)] * 300
    assert response.results[0].configs
