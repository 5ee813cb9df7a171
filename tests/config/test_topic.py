from __future__ import annotations

import pytest

from pybroker.config import BrokerConfig, ConfigError, LogConfig
from pybroker.config.definitions import find
from pybroker.config.describing import DYNAMIC_DEFAULT, STATIC, TOPIC, TYPE_CODES, Synonym
from pybroker.config.topic import (
    LOG_BROKER_SETTINGS,
    TOPIC_SETTINGS,
    describe_topic,
    parse_topic_config,
    validate_topic_config,
)
from tests.config.recorded import described

KAFKA = BrokerConfig.of({})


def test_defaults() -> None:
    config = LogConfig.from_broker(KAFKA, {})
    assert config.segment_bytes == 1 << 30
    assert config.segment_ms == config.retention_ms == 604_800_000
    assert config.segment_jitter_ms == 0
    assert config.flush_ms == config.flush_messages == 2**63 - 1
    assert config.cleanup_policy == {"delete"}
    assert (config.delete, config.compact) == (True, False)
    assert config.message_timestamp_type == "CreateTime"
    assert config.validate_records is False
    assert config.leader_replication_throttled_replicas == []
    for name in TOPIC_SETTINGS:
        assert hasattr(config, name.replace(".", "_"))


def test_a_topic_overrides_its_broker() -> None:
    broker = BrokerConfig.of({"log.segment.bytes": "100", "log.retention.hours": "1", "log.cleanup.policy": "compact"})
    assert LogConfig.from_broker(broker, {}).retention_ms == 3_600_000
    assert LogConfig.from_broker(broker, {}).compact
    config = LogConfig.from_broker(broker, {"segment.bytes": "200", "retention.ms": "-1", "validate.records": "true"})
    assert (config.segment_bytes, config.retention_ms, config.validate_records) == (200, -1, True)


@pytest.mark.parametrize(
    ("settings", "retention"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-7"}, -1),
    ],
)
def test_retention_has_three_names(settings: dict[str, str], retention: int) -> None:
    assert LogConfig.from_broker(BrokerConfig.of(settings), {}).retention_ms == retention


def test_rolling_and_flushing_have_two_names() -> None:
    broker = BrokerConfig.of(
        {"log.roll.hours": "2", "log.roll.jitter.hours": "1", "log.flush.scheduler.interval.ms": "50"}
    )
    config = LogConfig.from_broker(broker, {})
    assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (7_200_000, 3_600_000, 50)
    broker = BrokerConfig.of({"log.roll.ms": "3", "log.roll.jitter.ms": "2", "log.flush.interval.ms": "1"})
    config = LogConfig.from_broker(broker, {})
    assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (3, 2, 1)


def test_the_old_bound_on_timestamps_counts_where_the_new_one_is_at_its_default() -> None:
    overrides = {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "9"}
    config = LogConfig.from_broker(KAFKA, overrides)
    assert (config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms) == (5, 9)


def test_bad_stored_settings_are_left_out_and_told() -> None:
    config = LogConfig.from_broker(KAFKA, {"retention.ms": "x", "nonesuch": "1", "segment.bytes": "99"})
    assert (config.retention_ms, config.segment_bytes) == (604_800_000, 99)
    assert config.ignored == (
        "Invalid value x for configuration retention.ms: Not a number of type LONG",
        "Unknown topic config name: nonesuch",
    )
    assert {entry.name: entry.value for entry in describe_topic(KAFKA, config.overrides)}["retention.ms"] == "604800000"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"nonesuch": "1"}, "Unknown topic config name: nonesuch"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        (
            {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "50"},
            "conflict topic config setting min.compaction.lag.ms (100) > max.compaction.lag.ms (50)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
        (
            {"remote.log.copy.disable": "true"},
            "It is invalid to set `remote.log.delete.on.disable` or `remote.log.copy.disable` under Zookeeper's mode.",
        ),
    ],
)
def test_validation_of_a_whole_topic(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic_config(overrides, KAFKA)
    assert caught.value.message == message


def test_a_topic_may_conflict_with_its_broker() -> None:
    broker = BrokerConfig.of({"log.cleaner.max.compaction.lag.ms": "10"})
    validate_topic_config({"min.compaction.lag.ms": "10"}, broker)
    with pytest.raises(ConfigError, match="conflict"):
        validate_topic_config({"min.compaction.lag.ms": "11"}, broker)


def test_one_setting() -> None:
    assert parse_topic_config("retention.ms", "5") == 5
    for name, text in (("nonesuch", "1"), ("retention.ms", None), ("retention.ms", "x")):
        with pytest.raises(ConfigError):
            parse_topic_config(name, text)


def test_described_as_kafka_does() -> None:
    found = describe_topic(KAFKA, {})
    assert [
        {
            "Name": entry.name,
            "Value": entry.value,
            "ReadOnly": entry.read_only,
            "ConfigSource": entry.source,
            "IsSensitive": entry.sensitive,
            "ConfigType": entry.kind,
            "Synonyms": [{"Name": one.name, "Value": one.value, "Source": one.source} for one in entry.synonyms],
        }
        for entry in found
    ] == described("topic")


def test_sources_and_keys() -> None:
    broker = BrokerConfig.of({"log.retention.ms": "7", "log.segment.bytes": "100"})
    broker.apply_dynamic({}, {"log.segment.bytes": "200"})
    retention, segment = describe_topic(broker, {"retention.ms": "5"}, ["segment.bytes", "retention.ms", "zzz"])[::-1]
    assert (retention.name, retention.value, retention.source) == ("retention.ms", "5", TOPIC)
    assert retention.synonyms[:2] == (Synonym("retention.ms", "5", TOPIC), Synonym("log.retention.ms", "7", STATIC))
    assert (segment.value, segment.source) == ("200", DYNAMIC_DEFAULT)
    assert describe_topic(broker, {}, ["zzz"]) == []
    assert len(describe_topic(broker, {}, [])) == 36


def test_ours_is_listed_when_it_is_set() -> None:
    (entry,) = describe_topic(KAFKA, {"validate.records": "true"}, ["validate.records"])
    assert (entry.value, entry.source, entry.kind) == ("true", TOPIC, TYPE_CODES["BOOLEAN"])
    assert describe_topic(KAFKA, {}, ["validate.records"]) == []


def test_the_broker_settings_that_logs_depend_on() -> None:
    assert {"log.retention.hours", "message.max.bytes", "validate.records"} < LOG_BROKER_SETTINGS
    assert all(find(name) is not None for name in LOG_BROKER_SETTINGS)
