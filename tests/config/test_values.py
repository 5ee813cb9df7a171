from __future__ import annotations

import pytest

from pybroker.config import values
from pybroker.config.definitions import setting
from pybroker.config.errors import ConfigError
from pybroker.config.modes import MESSAGE_FORMATS
from pybroker.config.topic import TOPIC_SETTINGS


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("BOOLEAN", " TRUE ", True),
        ("BOOLEAN", "false", False),
        ("INT", "+5", 5),
        ("INT", " -2147483648", -2147483648),
        ("LONG", "9223372036854775807", 9223372036854775807),
        ("SHORT", "-1", -1),
        ("DOUBLE", "1.7976931348623157E308", 1.7976931348623157e308),
        ("DOUBLE", ".5d", 0.5),
        ("LIST", " a , b,c", ["a", "b", "c"]),
        ("LIST", "  ", []),
        ("STRING", " x ", "x"),
    ],
)
def test_parse(kind: str, text: str, value: object) -> None:
    assert values.parse("x", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("BOOLEAN", "yes", "Expected value to be either true or false"),
        ("INT", "2147483648", "Not a number of type INT"),
        ("INT", "1_0", "Not a number of type INT"),
        ("INT", "", "Not a number of type INT"),
        ("INT", "9" * 5000, "Not a number of type INT"),
        ("LONG", "1.5", "Not a number of type LONG"),
        ("SHORT", "32768", "Not a number of type SHORT"),
        ("DOUBLE", "1e", "Not a number of type DOUBLE"),
        ("DOUBLE", "", "Not a number of type DOUBLE"),
    ],
)
def test_parse_refuses(kind: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        values.parse("some.name", kind, text)
    assert caught.value.message == f"Invalid value {text} for configuration some.name: {why}"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        # recorded of Kafka 3.9.2
        ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            "cleanup.policy",
            "foo",
            "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("segment.bytes", "1", "Invalid value 1 for configuration segment.bytes: Value must be at least 14"),
        (
            "compression.type",
            "foo",
            "Invalid value foo for configuration compression.type: String must be one of: "
            "uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("min.insync.replicas", "0", "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1"),
        ("max.message.bytes", "-1", "Invalid value -1 for configuration max.message.bytes: Value must be at least 0"),
        (
            "unclean.leader.election.enable",
            "maybe",
            "Invalid value maybe for configuration unclean.leader.election.enable: "
            "Expected value to be either true or false",
        ),
        (
            "message.timestamp.type",
            "x",
            "Invalid value x for configuration message.timestamp.type: "
            "String must be one of: CreateTime, LogAppendTime",
        ),
        # from its sources
        (
            "min.cleanable.dirty.ratio",
            "1.5",
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "leader.replication.throttled.replicas",
            "x,1:2",
            "Invalid value [x, 1:2] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ],
)
def test_kafkas_messages(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TOPIC_SETTINGS[name].parse(text)
    assert caught.value.message == message


def test_bounds_that_are_met() -> None:
    assert TOPIC_SETTINGS["leader.replication.throttled.replicas"].parse("*") == ["*"]
    assert TOPIC_SETTINGS["leader.replication.throttled.replicas"].parse("0:1,12:3") == ["0:1", "12:3"]
    for odd in ("*,", "0:1,,1:1", ",0:1", "0:1, ,"):  # recorded: Kafka takes these
        TOPIC_SETTINGS["leader.replication.throttled.replicas"].parse(odd)
    for wrong in ("*,*", "0:1,*", "1:1:1", "0:", ":"):
        with pytest.raises(ConfigError):
            TOPIC_SETTINGS["leader.replication.throttled.replicas"].parse(wrong)
    assert TOPIC_SETTINGS["compression.gzip.level"].parse("-1") == -1
    assert TOPIC_SETTINGS["cleanup.policy"].parse("compact,delete") == ["compact", "delete"]
    assert setting("group.consumer.migration.policy").parse("Upgrade") == "Upgrade"
    assert setting("remote.log.manager.copier.thread.pool.size").parse("-1") == -1
    for name, text in (
        ("group.consumer.migration.policy", "never"),
        ("remote.log.manager.copier.thread.pool.size", "0"),
        ("remote.log.storage.manager.class.name", ""),
    ):
        with pytest.raises(ConfigError):
            setting(name).parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (1.7976931348623157e308, "1.7976931348623157E308"), (1e7, "1.0E7"), (1e-4, "1.0E-4"), (0.0, "0.0")],
)
def test_doubles_are_written_as_java_does(value: float, text: str) -> None:
    assert values.java_double(value) == text


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("log.segment.bytes", "1GiB", "1073741824"),
        ("log.segment.bytes", "10 MB", "10000000"),
        ("log.cleaner.dedupe.buffer.size", "128MiB", "134217728"),
        ("log.retention.ms", "7d", "604800000"),
        ("log.retention.ms", "1.5h", "5400000"),
        ("log.retention.hours", "7d", "168"),
        ("log.retention.minutes", "1h", "60"),
        ("offsets.topic.num.partitions", "5k", "5k"),
        ("log.segment.bytes", "abc", "abc"),
        ("broker.rack", "10s", "10s"),
    ],
)
def test_units(name: str, text: str, plain: str) -> None:
    assert values.without_unit(name, setting(name).kind, text) == plain


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("log.segment.bytes", "7d", "unknown unit d"),
        ("log.retention.ms", "1GiB", "unknown unit GiB"),
        ("log.retention.hours", "90m", "not a whole number of hours"),
        ("log.segment.bytes", "0.5B", "not a whole number of bytes"),
    ],
)
def test_units_that_do_not_fit(name: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        values.without_unit(name, setting(name).kind, text)


@pytest.mark.parametrize("text", ["2.8", "2.8-IV1", "2.8.1", "0.10.2", "0.10.2-IV0", "0.9.0", "3.9"])
def test_releases_stand_for_their_last_step(text: str) -> None:
    values.check("inter.broker.protocol.version", "STRING", MESSAGE_FORMATS, text)


@pytest.mark.parametrize("text", ["2", "2.8-IV9", "1.9", "new", "", "0.10"])
def test_what_is_no_release(text: str) -> None:
    with pytest.raises(ConfigError, match=f"Version {text} is not a valid version"):
        values.check("inter.broker.protocol.version", "STRING", MESSAGE_FORMATS, text)
