from __future__ import annotations

import pytest

from pybroker.config import BrokerConfig, ConfigError, NotDynamic
from pybroker.config.broker import find_setting
from pybroker.config.definitions import OWN_DEFAULTS, names
from pybroker.config.describing import DEFAULT, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, Synonym
from tests.config.recorded import described

# The settings of the broker that was recorded; what it hid doesn't matter.
RECORDED = {
    "allow.everyone.if.no.acl.found": "true",
    "delegation.token.secret.key": "x",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": "x",
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": "x",
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": "x",
    "super.users": "x",
}
# By our own defaults.
OTHERS = {"listeners", "log.dir", "queued.max.request.bytes", "metadata.dir", "validate.records"} | set(OWN_DEFAULTS)


def test_typed_access() -> None:
    config = BrokerConfig.of({"log.dirs": "/a, /b", "broker.rack": "r1"})
    assert config.int("log.segment.bytes") == 1 << 30
    assert config.bool("auto.create.topics.enable") is True
    assert config.float("log.cleaner.min.cleanable.ratio") == 0.5
    assert config.str("compression.type") == "producer"
    assert config.opt_str("advertised.listeners") is None
    assert config.opt_int("log.retention.ms") is None
    assert config.list("log.cleanup.policy") == ["delete"]
    assert config.get("broker.rack") == "r1"
    assert config.log_dirs == ["/a", "/b"]
    with pytest.raises(KeyError):
        config.int("nonesuch")


def test_defaults_that_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    config = BrokerConfig.of({})
    assert config.log_dirs == ["/somewhere/pybroker"]
    assert BrokerConfig.of({"log.dir": "/x"}).log_dirs == ["/x"]
    assert config.int("queued.max.request.bytes") >= 128 << 20
    assert BrokerConfig.of({"queued.max.request.bytes": "-1"}).int("queued.max.request.bytes") == -1


def test_own_defaults_on_either_store() -> None:
    for connect in ("", "z:2181"):
        config = BrokerConfig.of({"zookeeper.connect": connect})
        assert config.list("group.coordinator.rebalance.protocols") == ["classic", "consumer"]
        assert config.source("group.coordinator.rebalance.protocols") == "pybroker"


def test_embedded_defaults_only_without_zookeeper() -> None:
    config = BrokerConfig.of({})
    assert config.int("offsets.topic.replication.factor") == 1
    assert config.source("offsets.topic.replication.factor") == "embedded"
    assert config.synonyms("offsets.topic.replication.factor") == (
        Synonym("offsets.topic.replication.factor", "1", STATIC),
        Synonym("offsets.topic.replication.factor", "3", DEFAULT),
    )
    config = BrokerConfig.of({"zookeeper.connect": "z:2181"})
    assert config.int("offsets.topic.replication.factor") == 3
    assert BrokerConfig.of({"offsets.topic.replication.factor": "2"}).int("offsets.topic.replication.factor") == 2


def test_dynamic_settings_win_and_are_told() -> None:
    config = BrokerConfig.of({"log.cleaner.backoff.ms": "3"})
    changes: list[frozenset[str]] = []
    config.on_change(changes.append)
    assert config.int("log.cleaner.backoff.ms") == 3
    assert config.apply_dynamic({"log.cleaner.backoff.ms": "1"}, {"log.cleaner.backoff.ms": "2"}) == []
    assert config.int("log.cleaner.backoff.ms") == 1
    assert [entry.source for entry in config.synonyms("log.cleaner.backoff.ms")] == [
        DYNAMIC_BROKER,
        DYNAMIC_DEFAULT,
        STATIC,
        DEFAULT,
    ]
    config.apply_dynamic({}, {"log.cleaner.backoff.ms": "2"})
    assert (config.int("log.cleaner.backoff.ms"), config.source("log.cleaner.backoff.ms")) == (2, "dynamic default")
    config.apply_dynamic({}, {})
    assert config.int("log.cleaner.backoff.ms") == 3
    assert changes == [frozenset({"log.cleaner.backoff.ms"})] * 3
    config.apply_dynamic({"log.cleaner.backoff.ms": "3"}, {})
    assert len(changes) == 3, "the value in force is the same"


def test_what_can_not_be_applied_is_left_out() -> None:
    config = BrokerConfig.of({})
    complaints = config.apply_dynamic(
        {"broker.id": "9", "log.retention.ms": "x", "message.max.bytes": "77", "custom.thing": "1"},
        {"advertised.listeners": "PLAINTEXT://a:1"},
    )
    assert complaints == [
        "broker.id can't be changed while the broker runs",
        "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        "advertised.listeners can't be set for all brokers at once",
    ]
    assert config.int("message.max.bytes") == 77
    assert config.int("broker.id") == -1


@pytest.mark.parametrize(
    ("settings", "per_broker", "message"),
    [
        ({"broker.id": "9"}, True, "Cannot update these configs dynamically: Set(broker.id)"),
        ({"broker.id": "9", "node.id": "9"}, True, "Cannot update these configs dynamically: Set(broker.id, node.id)"),
        (
            {"ssl.keystore.location": "/x"},
            True,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "Set(ssl.keystore.location)",
        ),
        (
            {"listeners": "PLAINTEXT://:1"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: Set(listeners)",
        ),
        (
            {"log.retention.ms": "a"},
            True,
            "Invalid value a for configuration log.retention.ms: Not a number of type LONG",
        ),
        ({"log.retention.ms": "0"}, False, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
    ],
)
def test_validation_of_dynamic_settings(settings: dict[str, str], per_broker: bool, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.of({}).validate_dynamic(settings, per_broker=per_broker)
    assert caught.value.message == message
    assert isinstance(caught.value, NotDynamic) == ("Set(" in message)


def test_good_dynamic_settings() -> None:
    config = BrokerConfig.of({})
    config.validate_dynamic({"log.retention.ms": "5", "custom": "x"}, per_broker=False)
    config.validate_dynamic({"listener.name.a.ssl.keystore.location": "/x"}, per_broker=True)


RATE = "leader.replication.throttled.rate"
THREADS = (
    "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation failed for "
    "num.replica.fetchers={}, value should {} for configuration Invalid dynamic configuration"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({RATE: "-1"}, f"Invalid value -1 for configuration {RATE}: Value must be at least 0"),
        ({RATE: "1.5"}, f"Invalid value 1.5 for configuration {RATE}: Not a number of type LONG"),
        ({"num.replica.fetchers": "9"}, THREADS.format(9, "not be greater than double the current value 4")),
        ({"num.replica.fetchers": "1"}, THREADS.format(1, "be at least half the current value 4")),
        ({"num.replica.fetchers": "0"}, THREADS.format(0, "be at least 1")),
        ({}, THREADS.format(1, "be at least half the current value 4")),  # a deletion
        (
            {"num.replica.fetchers": "4", "log.cleaner.threads": "3"},
            "Invalid value org.apache.kafka.common.config.ConfigException: Log cleaner threads cannot be increased to "
            "more than double the current value 1 for configuration Invalid dynamic configuration",
        ),
    ],
)
def test_throttles_and_numbers_of_threads(settings: dict[str, str], message: str) -> None:
    """As recorded of Kafka 3.9.2."""
    config = BrokerConfig.of({})
    config.apply_dynamic({"num.replica.fetchers": "4"}, {})
    with pytest.raises(ConfigError) as caught:
        config.validate_dynamic(settings, per_broker=True)
    assert caught.value.message == message
    config.validate_dynamic({"num.replica.fetchers": "8", RATE: "0"}, per_broker=True)
    config.validate_dynamic({"num.replica.fetchers": "2"}, per_broker=True)


def test_a_throttle_is_told_of_where_it_is_set_and_counts_only_while_running() -> None:
    config = BrokerConfig.of({})
    assert RATE not in {entry.name for entry in config.describe()}
    assert config.throttle(RATE) is None
    config.apply_dynamic({RATE: "10"}, {RATE: "20"})
    (entry,) = config.describe([RATE])
    assert (entry.value, entry.source, entry.read_only, entry.sensitive) == ("10", DYNAMIC_BROKER, True, False)
    assert entry.synonyms == (Synonym(RATE, "10", DYNAMIC_BROKER), Synonym(RATE, "20", DYNAMIC_DEFAULT))
    assert config.throttle(RATE) == 10
    assert BrokerConfig.of({RATE: "5"}).throttle(RATE) is None


def test_prefixed_names() -> None:
    prefixed = find_setting("listener.name.client.scram-sha-256.sasl.jaas.config")
    assert prefixed is not None and prefixed.sensitive
    assert find_setting("listener.name.client.ssl.keystore.type") is not None
    assert find_setting("listener.name.client.nonesuch") is None


def test_described_as_kafka_does() -> None:
    kafka = {entry["Name"]: entry for entry in described("broker")}
    static = dict(RECORDED)
    dynamic: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for name, entry in kafka.items():
        for one in entry["Synonyms"]:
            if one["Name"] == name and one["Value"] is not None:
                level = {DYNAMIC_BROKER: dynamic, DYNAMIC_DEFAULT: defaults, STATIC: static}.get(one["Source"])
                if level is not None:
                    level[name] = one["Value"]
    config = BrokerConfig.of(static)
    assert config.apply_dynamic(dynamic, defaults) == []
    ours = {entry.name: entry for entry in config.describe()}
    assert set(kafka) <= set(ours)
    for name in set(kafka) - OTHERS:
        entry = ours[name]
        assert {
            "Name": name,
            "Value": entry.value,
            "ReadOnly": entry.read_only,
            "ConfigSource": entry.source,
            "IsSensitive": entry.sensitive,
            "Synonyms": [{"Name": one.name, "Value": one.value, "Source": one.source} for one in entry.synonyms],
        } == {key: kafka[name][key] for key in ("Name", "Value", "ReadOnly", "ConfigSource", "IsSensitive", "Synonyms")}


def test_keys_and_the_broker_without_a_name() -> None:
    config = BrokerConfig.of({})
    config.apply_dynamic({"log.retention.ms": "1"}, {"log.retention.ms": "600000000"})
    assert [entry.name for entry in config.describe(["num.partitions", "nonesuch"])] == ["num.partitions"]
    assert len(config.describe([])) == len(config.describe()) < len(list(names()))
    (entry,) = config.describe_defaults()
    assert (entry.name, entry.value, entry.source) == ("log.retention.ms", "600000000", DYNAMIC_DEFAULT)
    assert config.describe_defaults(["num.partitions"]) == []
