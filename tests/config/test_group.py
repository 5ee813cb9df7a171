"""Settings of consumer groups: Kafka 4.3.1's words for what it refuses, and where a value comes from."""

from __future__ import annotations

import pytest

from pybroker.config import BrokerConfig, ConfigError
from pybroker.config.describing import DEFAULT, GROUP, Synonym
from pybroker.config.group import describe_group, validate_group_config

SESSION = "consumer.session.timeout.ms"
BEAT = "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (SESSION, "5", f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"),
        (SESSION, "70000", f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms"),
        (BEAT, "70000", f"{BEAT} must be less than or equal to group.consumer.max.heartbeat.interval.ms"),
        (BEAT, "1000", f"{BEAT} must be greater than or equal to group.consumer.min.heartbeat.interval.ms"),
        (INTERVAL, "16000", f"{INTERVAL} must be less than or equal to group.consumer.max.assignment.interval.ms"),
        (SESSION, "abc", f"Invalid value abc for configuration {SESSION}: Not a number of type INT"),
        (SESSION, "0", f"Invalid value 0 for configuration {SESSION}: Value must be at least 1"),
        ("bogus", "1", "Unknown group config name: bogus"),
    ],
)
def test_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_group_config({name: value}, BrokerConfig.of({}))
    assert refused.value.message == message


def test_bounds_are_the_brokers() -> None:
    validate_group_config({SESSION: "50000", BEAT: "6000", INTERVAL: "0"}, BrokerConfig.of({}))
    validate_group_config({SESSION: "5"}, BrokerConfig.of({"group.consumer.min.session.timeout.ms": "1"}))


def test_described() -> None:
    broker = BrokerConfig.of({})
    session, interval, beat = describe_group(broker, {BEAT: "7000"})
    assert (session.name, interval.name, beat.name) == (SESSION, INTERVAL, BEAT)
    assert (session.value, session.source, session.synonyms) == (
        "45000", DEFAULT, (Synonym(f"group.{SESSION}", "45000", DEFAULT),)
    )  # fmt: skip
    assert (beat.value, beat.source, beat.synonyms) == (
        "7000", GROUP, (Synonym(BEAT, "7000", GROUP), Synonym(f"group.{BEAT}", "5000", DEFAULT))
    )  # fmt: skip
    assert [each.name for each in describe_group(broker, {}, [SESSION, "nope"])] == [SESSION]
