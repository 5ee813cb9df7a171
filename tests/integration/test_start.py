"""Starting and stopping, as a user sees it: files, settings, errors, signals, a second broker, a restart."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pybroker.broker.cluster.process import StartFailed
from tests.support.broker import BrokerProcess, broker_environment, wait_until
from tests.support.records import batch, headers

COMMAND = [sys.executable, "-m", "pybroker"]


def pybroker(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=broker_environment() | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def refused(tmp_path: Path, *arguments: str, **environment: str) -> str:
    """A start that must fail; what it said."""
    done = pybroker("start", "--port", "0", "--data-dir", str(tmp_path / "d"), *arguments, cwd=tmp_path, **environment)
    assert done.returncode not in (0, -signal.SIGKILL), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def test_ready_file_and_ready_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        ready = json.loads(broker.ready_file.read_text())
        assert ready["pid"] == broker.pid
        assert ready["listeners"]["PLAINTEXT"] == {"host": broker.host, "port": broker.port}
        assert broker.host == "127.0.0.1"
        lines = [line for line in broker.log_text().splitlines() if "ready" in line]
        assert len(lines) == 1
        assert broker.address in lines[0]
        assert str(broker.data_dir) in lines[0]
        with broker.client() as client:
            answer = client.call("Metadata", 12, {"Topics": None})
            assert answer["ControllerId"] == answer["Brokers"][0]["NodeId"], "the first answer names the controller"


@pytest.mark.parametrize("name", ["missing/ready", "folder"])
def test_a_ready_file_that_cannot_be_written_is_told_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    file = tmp_path / name
    assert str(file) in refused(tmp_path, "--ready-file", str(file))
    assert not (tmp_path / "d").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_nothing_is_written_to_the_working_directory(tmp_path: Path) -> None:
    """Data goes to $XDG_DATA_HOME/pybroker, which the broker prints."""
    work, home = tmp_path / "work", tmp_path / "xdg"
    work.mkdir()
    ready = tmp_path / "ready"
    command = [*COMMAND, "start", "--port", "0", "--ready-file", str(ready)]
    environment = broker_environment() | {"XDG_DATA_HOME": str(home), "HOME": str(tmp_path)}
    with subprocess.Popen(command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        wait_until(lambda: ready.exists() or run.poll() is not None, 30)
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=30)
    assert run.returncode == 0
    assert str(home / "pybroker") in output.decode()
    assert (home / "pybroker" / "meta.properties").exists()
    assert list(work.iterdir()) == []


def test_sources_of_settings(tmp_path: Path) -> None:
    """Later wins: default, file, environment, override."""
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.retention.hours=5\ncompression.type=gzip\n")
    environment = {"KAFKA_LOG_RETENTION_HOURS": "6", "KAFKA_COMPRESSION_TYPE": "lz4", "KAFKA_HEAP_OPTS": "-Xmx1G"}
    with BrokerProcess(
        tmp_path / "data", {"compression.type": "zstd"}, arguments=(str(file),), environment=environment
    ) as broker:
        with broker.client() as client:
            broker_id = client.call("Metadata", 1, {"Topics": []})["Brokers"][0]["NodeId"]
            keys = ["num.partitions", "log.retention.hours", "compression.type"]
            resource = {"ResourceType": 4, "ResourceName": str(broker_id), "ConfigurationKeys": keys}
            configs = client.call("DescribeConfigs", 4, {"Resources": [resource]})["Results"][0]["Configs"]
        assert {each["Name"]: each["Value"] for each in configs} == {
            "num.partitions": "2",
            "log.retention.hours": "6",
            "compression.type": "zstd",
        }
        assert "HEAP" not in broker.log_text()


def test_config_print(tmp_path: Path) -> None:
    done = pybroker("config", "print", "--override", "num.partitions=7", cwd=tmp_path)
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("num.partitions")]
    assert len(lines) == 1
    assert "7" in lines[0]
    assert "override" in lines[0]
    assert "offsets.topic.replication.factor" in done.stdout


def test_yaml_with_units(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("log.segment.bytes: 64MiB\nlog.retention.ms: 7d\n")
    done = pybroker("config", "print", str(file), cwd=tmp_path)
    shown = {line.split()[0].split("=")[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert str(64 << 20) in shown["log.segment.bytes"]
    assert str(7 * 86_400_000) in shown["log.retention.ms"]


def test_every_wrong_setting_is_named(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# a comment\nnum.partitions=many\nlog.segment.bytes=1\n")
    said = refused(tmp_path, str(file), "--override", "compression.type=tar")
    for text in ("num.partitions=many", "server.properties:2", "log.segment.bytes=1", "server.properties:3"):
        assert text in said
    assert "compression.type=tar" in said
    assert "gzip" in said, "what is allowed"


def test_an_unknown_setting_gets_a_suggestion(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", {"num.partition": 3}) as broker:
        assert any("num.partition" in line and "num.partitions" in line for line in broker.log_text().splitlines())


def test_a_file_of_kafka_4(tmp_path: Path) -> None:
    """process.roles: one warning; node.id is the broker id, the controller's listener is not opened."""
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=7\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\ncontroller.listener.names=CONTROLLER\n"
        "inter.broker.listener.name=PLAINTEXT\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
    )
    with BrokerProcess(tmp_path / "data", arguments=(str(file),)) as broker:
        assert list(broker.ready["listeners"]) == ["PLAINTEXT"]
        with broker.client() as client:
            assert [each["NodeId"] for each in client.call("Metadata", 1, {"Topics": []})["Brokers"]] == [7]
        assert sum("process.roles" in line for line in broker.log_text().splitlines()) == 1


def test_a_directory_formatted_for_kraft_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "d"
    data.mkdir()
    (data / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAQ\nnode.id=1\n")
    said = refused(tmp_path)
    assert str(data) in said
    assert "KRaft" in said


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        said = refused(tmp_path)
        assert "lock" in said
        assert str(broker.data_dir) in said
        with broker.client() as client:
            client.call("ApiVersions", 0)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = pybroker("start", "--port", str(port), "--data-dir", str(tmp_path / "d"), cwd=tmp_path)
    assert done.returncode != 0
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        with broker.client() as client:
            client.create_topic("t")
            client.produce("t", batch([b"x"]))
        os.kill(broker.pid, number)
        assert broker.wait() == 0
    finally:
        broker.kill()
    broker.check_log()
    assert (broker.data_dir / ".kafka_cleanshutdown").exists()


def test_a_stop_does_not_wait_for_waiting_fetches(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client(timeout=60) as client:
        client.create_topic("t")
        client.send_fetch("t", 0, wait_ms=50_000)
        began = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - began < 10


def test_restart_keeps_everything(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as client:
            client.create_topic("kept", 3, retention_ms="123456")
            before = client.call("Metadata", 12, {"Topics": [{"Name": "kept"}]})
            client.produce("kept", batch([b"a", b"b"]), partition=1)
            client.create_topic("gone")
            client.call("DeleteTopics", 5, {"TopicNames": ["gone"], "TimeoutMs": 5000})
        broker.restart()
        with broker.client() as client:
            after = client.call("Metadata", 12, {"Topics": [{"Name": "kept"}]})
            assert [each["TopicId"] for each in after["Topics"]] == [each["TopicId"] for each in before["Topics"]]
            assert after["ClusterId"] == before["ClusterId"]
            assert len(after["Topics"][0]["Partitions"]) == 3
            (only,) = headers(client.fetch("kept", 0, partition=1)["Records"])
            assert only is not None
            assert only.count == 2
            resource = {"ResourceType": 2, "ResourceName": "kept", "ConfigurationKeys": ["retention.ms"]}
            config = client.call("DescribeConfigs", 4, {"Resources": [resource]})["Results"][0]["Configs"][0]
            assert (config["Value"], config["ConfigSource"]) == ("123456", 1)
            gone = client.call("Metadata", 4, {"Topics": [{"Name": "gone"}], "AllowAutoTopicCreation": False})
            assert gone["Topics"][0]["ErrorCode"] == 3


def test_several_listeners(tmp_path: Path) -> None:
    overrides = {
        "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with BrokerProcess(tmp_path / "data", overrides) as broker:
        assert sorted(broker.ready["listeners"]) == ["OUTSIDE", "PLAINTEXT"]
        for listener in broker.ready["listeners"].values():
            broker.port = listener["port"]
            with broker.client() as client:
                assert client.call("Metadata", 1, {"Topics": []})["Brokers"][0]["Port"] == listener["port"]


# What a start has no use for, and what it would cost: tens of ms each, of a budget of 150.
NOT_AT_START = [
    "aiohttp", "click", "cramjam", "email", "importlib.metadata", "kazoo", "lz4", "multiprocessing",
    "prometheus_client", "pybroker.coordinator", "re2", "snappy", "urllib.request", "uuid", "zstandard",
]  # fmt: skip


def test_a_start_imports_only_what_it_needs() -> None:
    code = f"import sys, pybroker.broker.server; print([name for name in {NOT_AT_START!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("")
    with pytest.raises(StartFailed, match="a-file"):
        BrokerProcess(file).start()
