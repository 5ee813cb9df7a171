from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.config import BrokerConfig, ConfigErrors
from pybroker.config.broker import Static
from pybroker.config.loader import load, nearest


def written(folder: Path, text: str, name: str = "server.properties") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def loaded(*overrides: str, environ: dict[str, str] | None = None, file: str | None = None) -> BrokerConfig:
    return load(file, overrides, environ=environ or {})


def refused(*overrides: str, environ: dict[str, str] | None = None, file: str | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigErrors) as caught:
        loaded(*overrides, environ=environ, file=file)
    return caught.value.errors


def test_nothing_at_all() -> None:
    config = loaded()
    assert config.warnings == []
    assert config.static == {}


def test_later_ones_win(tmp_path: Path) -> None:
    file = written(tmp_path, "num.partitions=2\nlog.segment.bytes=200\nmessage.max.bytes=20\n")
    environ = {"KAFKA_LOG_SEGMENT_BYTES": "300", "KAFKA_MESSAGE_MAX_BYTES": "30"}
    config = loaded("message.max.bytes=40", environ=environ, file=file)
    assert (config.int("num.partitions"), config.source("num.partitions")) == (2, "server.properties:1")
    assert config.int("log.segment.bytes") == 300
    assert config.source("log.segment.bytes") == "environment KAFKA_LOG_SEGMENT_BYTES"
    assert (config.int("message.max.bytes"), config.source("message.max.bytes")) == (40, "--override")
    assert config.source("log.index.interval.bytes") == "default"


def test_yaml_with_units(tmp_path: Path) -> None:
    file = written(tmp_path, "log:\n  segment.bytes: 1GiB\n  retention.hours: 7d\n", "server.yaml")
    config = loaded(file=file)
    assert (config.int("log.segment.bytes"), config.int("log.retention.hours")) == (1 << 30, 168)
    assert config.text("log.segment.bytes") == "1073741824"
    assert config.source("log.retention.hours") == "server.yaml:3"


def test_every_error_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, "\nnum.partitions=x\nlog.segment.bytes=1\nssl.key.password=s\nlog.retention.ms=1GiB\n")
    errors = refused("compression.type=rar", "nonsense", environ={"KAFKA_AUTO_CREATE_TOPICS_ENABLE": "si"}, file=file)
    assert set(errors) == {
        "num.partitions=x (server.properties:2): Not a number of type INT; allowed is a whole number of at least 1",
        "log.segment.bytes=1 (server.properties:3): Value must be at least 14",
        "log.retention.ms=1GiB (server.properties:5): unknown unit GiB, known are ms, s, m, min, h, d, w; "
        "allowed is a whole number",
        "compression.type=rar (--override): String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        "--override nonsense: must be of the form key=value",
        "auto.create.topics.enable=si (environment KAFKA_AUTO_CREATE_TOPICS_ENABLE): "
        "Expected value to be either true or false",
    }


def test_unknown_names_warn_and_suggest(tmp_path: Path) -> None:
    file = written(tmp_path, "log.segment.byts=1\n")
    config = loaded("entirely.different=1", environ={"KAFKA_NUM_PARTITION": "1"}, file=file)
    assert config.warnings == [
        "log.segment.byts (server.properties:1) is no setting that this broker knows; did you mean log.segment.bytes?",
        "environment KAFKA_NUM_PARTITION is no setting; did you mean KAFKA_NUM_PARTITIONS?",
        "entirely.different (--override) is no setting that this broker knows",
    ]
    assert nearest("zookeper.connect") == "zookeeper.connect"


@pytest.mark.parametrize(
    "variable",
    [
        "KAFKA_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_HOME",
        "KAFKA_PORT",
        "KAFKA_PORT_9092_TCP_ADDR",
        "KAFKA_SERVICE_HOST",
        "KAFKA_SERVICE_PORT",
        "KAFKA_0_SERVICE_HOST",
        "KAFKA_BROKER_SERVICE_PORT_CLIENT",
        "KAFKA_BROKER_PORT_9092_TCP",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "NOT_KAFKA_AT_ALL",
    ],
)
def test_names_for_others_are_skipped_silently(variable: str) -> None:
    config = loaded(environ={variable: "-Xmx1g"})
    assert (config.warnings, config.static) == ([], {})


def test_names_that_kafka_never_had() -> None:
    config = loaded("replica.lag.max.ms=4s", "socket.server.default.port=9999", "replica.election.strategy=unclean")
    assert config.int("replica.lag.time.max.ms") == 4000
    assert config.source("replica.lag.time.max.ms") == "--override (replica.lag.max.ms)"
    assert config.listeners[0].port == 9999
    assert config.bool("unclean.leader.election.enable") is True
    assert len([text for text in config.warnings if "taken for the nearest one" in text]) == 3
    config = loaded("replica.lag.time.max.ms=5000", "replica.lag.max.ms=4000", "log.shutdown.threads.sleep.ms=1")
    assert config.int("replica.lag.time.max.ms") == 5000


def test_zookeeper_connect_and_the_way_out(tmp_path: Path) -> None:
    file = written(tmp_path, "broker.id=0\nzookeeper.connect=localhost:2181, other:2181/kafka\n")
    config = loaded(file=file)
    assert config.zookeeper == "localhost:2181, other:2181/kafka"
    assert config.int("offsets.topic.replication.factor") == 3
    config = loaded("zookeeper.connect=", file=file)
    assert config.int("broker.id") == config.int("node.id") == 0
    assert config.zookeeper == ""
    assert config.int("offsets.topic.replication.factor") == 1


def test_what_zookeeper_settings_are_refused() -> None:
    assert refused("zookeeper.connect=:2181,zk:x,/kafka") == (
        "zookeeper.connect: ':2181' is not of the form HOST:PORT",
        "zookeeper.connect: 'zk:x' is not of the form HOST:PORT",
        "zookeeper.connect: '' is not of the form HOST:PORT",
    )
    said = refused(
        "zookeeper.connect=zk:2181",
        "zookeeper.ssl.keystore.location=/k.jks",
        "zookeeper.ssl.truststore.location=/t.p12",
        "zookeeper.ssl.ocsp.enable=true",
    )
    assert len(said) == 3
    assert all(word in text for word, text in zip(("JKS", "PKCS12", "OCSP"), said, strict=True))


def test_a_file_of_kafka_4(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ninter.broker.listener.name=PLAINTEXT\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL\n",
    )
    config = loaded(file=file)
    assert config.int("broker.id") == 1
    assert [str(endpoint) for endpoint in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(endpoint) for endpoint in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert len(config.warnings) == 1
    assert config.warnings[0].startswith("process.roles (server.properties:1): ")
    (error,) = refused("process.roles=controller", file=file)
    assert "broker only" in error


def test_two_ids_that_differ() -> None:
    assert refused("broker.id=1", "node.id=2") == ("You must set `node.id` to the same value as `broker.id`.",)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("broker.id=1001",), "broker.id must be greater than or equal to -1"),
        (("broker.id.generation.enable=false",), "broker.id must be greater than or equal to 0"),
        (("log.retention.ms=0",), "log.retention.ms must be unlimited"),
        (("replica.fetch.wait.max.ms=40000",), "replica.socket.timeout.ms should always be at least"),
        (("replica.lag.time.max.ms=100",), "replica.fetch.wait.max.ms should always be less"),
        (("queued.max.request.bytes=10",), "queued.max.request.bytes must be larger or equal"),
        (("max.connections.per.ip=0",), "max.connections.per.ip can be set to zero only"),
        (("max.connections.per.ip.overrides=host",), "host is not of the form HOST:COUNT"),
        (("connections.max.idle.ms=50",), "connection.failed.authentication.delay.ms=100 should always be less"),
        (("log.cleaner.dedupe.buffer.size=1000",), "at least 1MB per cleaner thread"),
        (("listeners=PLAINTEXT://0.0.0.0:9092",), "cannot use the nonroutable meta-address 0.0.0.0"),
        (("advertised.listeners=OTHER://a:1",), "No security protocol defined for listener OTHER"),
        (("advertised.listeners=SSL://a:1",), "listener names must be equal to or a subset"),
        (("inter.broker.listener.name=X",), "inter.broker.listener.name must be a listener name defined"),
        (
            ("inter.broker.listener.name=PLAINTEXT", "security.inter.broker.protocol=PLAINTEXT"),
            "Only one of inter.broker.listener.name",
        ),
        (("listeners=",), "There must be at least one listener"),
        (("log.dirs=",), "At least one log directory must be defined via log.dirs or log.dir."),
        (("log.dirs= , ",), "At least one log directory must be defined via log.dirs or log.dir."),
        (("listeners=SSL://:1,PLAINTEXT://:2",), "only PLAINTEXT is served yet"),
        (("listeners=foo",), "foo is not of the form NAME://HOST:PORT"),
        (("group.consumer.heartbeat.interval.ms=1",), "must be greater than or equal to"),
    ],
)
def test_contradictions(overrides: tuple[str, ...], message: str) -> None:
    assert any(message in error for error in refused(*overrides))


def test_listeners_that_are_fine() -> None:
    config = loaded("listeners=PLAINTEXT://0.0.0.0:9092", "advertised.listeners=PLAINTEXT://example.org:9092")
    assert config.advertised_listeners[0].host == "example.org"


def test_known_but_not_served_is_said_once() -> None:
    config = loaded(
        "cordoned.log.dirs=/a", "super.users=User:a", "authorizer.class.name=x", "kafka.metrics.reporters=y"
    )
    assert config.warnings == [
        "known but not served yet, so without effect: authorizer.class.name, cordoned.log.dirs, super.users",
        "without meaning for this broker, so without effect: kafka.metrics.reporters",
        "authorizer.class.name is set, but every request is allowed: there is no authorizer yet",
    ]
    assert loaded("log.cleaner.threads=1", "num.io.threads=4", "offsets.topic.replication.factor=1").warnings == []


def test_the_port_is_the_first_listeners() -> None:
    config = load(None, (), environ={}, port=0)
    assert (config.listeners[0].port, config.source("listeners")) == (0, "--port")
    assert config.advertised_listeners[0].host == "127.0.0.1"
    overrides = ["listeners=A://[::1]:9092,B://:9093", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
                 "inter.broker.listener.name=A"]  # fmt: skip
    config = load(None, overrides, environ={}, port=5)
    assert [str(endpoint) for endpoint in config.listeners] == ["A://[::1]:5", "B://:9093"]
    assert config.source("listeners") == "--override, --port"


def test_options_win_over_overrides() -> None:
    config = load(None, ["log.dirs=/a"], environ={}, options={"log.dirs": Static("/b", "--data-dir")})
    assert (config.log_dirs, config.source("log.dirs")) == (["/b"], "--data-dir")


def test_a_setting_twice_in_one_file(tmp_path: Path) -> None:
    config = loaded(file=written(tmp_path, "num.partitions=1\nnum.partitions=2\n"))
    assert config.int("num.partitions") == 2
    assert config.warnings == ["num.partitions stands twice in server.properties, on lines 1 and 2: the last counts"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", b"a: [", "a.yaml, line "),
        ("a.yaml", b"a: \xff", "a.yaml, "),
        ("a.properties", b"a=\\uzzzz", "a.properties, line 1: "),
    ],
)
def test_files_that_can_not_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    (error,) = refused(file=str(tmp_path / name))
    assert message in error


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert refused(file=str(tmp_path / "none")) == (f"{tmp_path / 'none'}: No such file or directory",)
    assert refused(file=str(tmp_path)) == (f"{tmp_path}: Is a directory",)


def test_a_properties_file_in_latin_1_and_one_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"broker.rack=caf\xe9")
    assert loaded(file=str(path)).str("broker.rack") == "café"
    path.write_bytes("\ufeffbroker.rack=café".encode())
    assert loaded(file=str(path)).str("broker.rack") == "café"
