"""The files of a local cluster, and where a ZooKeeper is looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pybroker.broker.cluster import zookeeper
from pybroker.broker.cluster.plan import Plan, consecutive_ports, known_zookeeper_port, parse_overrides, properties
from pybroker.config.loader import load
from pybroker.config.properties import parse_properties


def plan(directory: Path, count: int, **options: object) -> Plan:
    return Plan(directory, consecutive_ports(count, 19092), "127.0.0.1:2181/local", **options)  # type: ignore[arg-type]


def test_server_files_are_what_a_broker_reads(tmp_path: Path) -> None:
    made = plan(
        tmp_path, 3, overrides={"num.partitions": "7"}, own_overrides={2: {"num.partitions": "8", "broker.rack": "r"}}
    )
    made.write()
    assert made.bootstrap == "127.0.0.1:19092,127.0.0.1:19093,127.0.0.1:19094"
    for broker_id, partitions, rack in ((1, 7, None), (2, 8, "r"), (3, 7, None)):
        config = load(str(made.server_file(broker_id)), environ={})
        assert config.warnings == []
        assert config.int("broker.id") == broker_id
        assert [str(each) for each in config.listeners] == [f"PLAINTEXT://127.0.0.1:{19091 + broker_id}"]
        assert config.zookeeper == "127.0.0.1:2181/local"
        assert config.log_dirs == [str(tmp_path / f"broker-{broker_id}")]
        assert config.int("num.partitions") == partitions
        assert config.opt_str("broker.rack") == rack
        assert config.int("offsets.topic.replication.factor") == 3


@pytest.mark.parametrize("count, factor, min_isr", [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2)])
def test_internal_topics_have_no_more_replicas_than_brokers(
    tmp_path: Path, count: int, factor: int, min_isr: int
) -> None:
    made = plan(tmp_path, count)
    made.write()
    config = load(str(made.server_file(1)), environ={})
    assert config.int("offsets.topic.replication.factor") == factor
    assert config.int("transaction.state.log.replication.factor") == factor
    assert config.int("transaction.state.log.min.isr") == min_isr


def test_zookeeper_keeps_its_port(tmp_path: Path) -> None:
    assert known_zookeeper_port(tmp_path) is None
    plan(tmp_path, 1).write()
    assert known_zookeeper_port(tmp_path) is None, "one that runs already needs no file"
    plan(tmp_path, 1, zookeeper_port=12181).write()
    assert known_zookeeper_port(tmp_path) == 12181
    (tmp_path / "zoo.cfg").write_text("clientPort=none\n")
    assert known_zookeeper_port(tmp_path) is None


def test_values_are_read_as_they_were_given() -> None:
    settings = {"a": " leading and trailing ", "b": "back\\slash", "c": "two\nlines\tand a tab", "d": "", "e": "x=y:#!"}
    assert {each.name: each.value for each in parse_properties(properties(settings))} == settings


def test_overrides() -> None:
    assert parse_overrides(["a.b = c=d", "e="]) == {"a.b": " c=d", "e": ""}
    with pytest.raises(ValueError, match="--override nothing: must be of the form key=value"):
        parse_overrides(["nothing"])


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A PATH with a java."""
    found = tmp_path / "bin" / "java"
    found.parent.mkdir()
    found.write_text("")
    found.chmod(0o755)
    return found.parent


def test_zookeeper_is_found(tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "DEBIAN", tmp_path / "debian")
    places = {"debian": "debian", "home": "home/lib", "script": "script/lib", "kafka": "kafka/libs"}
    environ = {"PATH": str(java)}
    with pytest.raises(zookeeper.NoZooKeeper, match="apt-get install zookeeper"):
        zookeeper.class_path(environ)
    for folder in places.values():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "zookeeper-3.8.4.jar").write_text("")
    environ["KAFKA_HOME"] = str(tmp_path / "kafka")
    assert zookeeper.class_path(environ) == f"{tmp_path}/kafka/libs/*"
    script = tmp_path / "script" / "bin" / "zkServer.sh"
    script.parent.mkdir()
    script.write_text("")
    script.chmod(0o755)
    (java / "zkServer.sh").symlink_to(script)
    assert zookeeper.class_path(environ) == f"{tmp_path}/script/lib/*"
    (tmp_path / "debian" / "zookeeper.jar").write_text("")
    assert zookeeper.class_path(environ).split(os.pathsep)[0] == f"{tmp_path}/debian/zookeeper.jar"
    environ["ZOOKEEPER_HOME"] = str(tmp_path / "home")
    assert zookeeper.class_path(environ) == f"{tmp_path}/home/lib/*"


def test_without_java_nothing_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(zookeeper.NoZooKeeper, match="needs Java"):
        zookeeper.class_path({"PATH": str(tmp_path), "ZOOKEEPER_HOME": str(tmp_path)})
