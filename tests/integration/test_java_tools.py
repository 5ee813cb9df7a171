"""The command-line tools of Apache Kafka 3.9.2 and 4.3.1 do their work against this broker."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.java import RELEASES, need_java, run_tool
from tests.support.records import batch

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("java")) / "data") as running:
        yield running


@pytest.fixture(params=RELEASES)
def tool(request: pytest.FixtureRequest, broker: BrokerProcess) -> Tool:
    need_java(request.param)
    return Tool(request.param, broker)


class Tool:
    """Tools of one release against the broker; topics of a test have the release in their name."""

    def __init__(self, release: str, broker: BrokerProcess) -> None:
        self.release, self.broker = release, broker
        self.suffix = release.replace(".", "-")

    def __call__(self, name: str, *arguments: str, bootstrap: str = "--bootstrap-server") -> str:
        """What the tool wrote, without log lines."""
        given = [bootstrap, self.broker.address] if bootstrap else []
        text = run_tool(self.release, name, *given, *arguments).stdout
        return "\n".join(line for line in text.splitlines() if not re.match(r"SLF4J|log4j|\[.*\] (INFO|WARN)", line))

    def topic(self, name: str, records: int = 0, partitions: int = 1) -> str:
        """A new topic with records in partition 0."""
        topic, now = f"{name}-{self.suffix}", int(time.time() * 1000)
        with self.broker.client() as client:
            client.create_topic(topic, partitions)
            for number in range(records):
                records = batch([b"value %d" % number], ts=now + number)
                assert client.produce(topic, records)["ErrorCode"] == 0
        return topic


def test_topic_command(tool: Tool) -> None:
    topic = f"topics-{tool.suffix}"
    out = tool(
        "TopicCommand", "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "1",
        "--config", "retention.ms=3600000",
    )  # fmt: skip
    assert f"Created topic {topic}." in out
    assert topic in tool("TopicCommand", "--list").splitlines()
    described = tool("TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=3600000" in described
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 3
    tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in tool("TopicCommand", "--describe", "--topic", topic)
    tool("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tool("TopicCommand", "--list").splitlines()


def test_config_command(tool: Tool) -> None:
    topic = tool.topic("configs")
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool("ConfigCommand", "--alter", *entity, "--add-config", "max.message.bytes=2000,cleanup.policy=[compact,delete]")
    out = tool("ConfigCommand", "--describe", *entity)
    assert "max.message.bytes=2000" in out
    assert "cleanup.policy=compact,delete" in out
    tool("ConfigCommand", "--alter", *entity, "--delete-config", "max.message.bytes")
    assert "max.message.bytes=2000" not in tool("ConfigCommand", "--describe", *entity)
    everything = tool("ConfigCommand", "--describe", "--all", *entity)
    assert "max.message.bytes=1048588" in everything


def test_config_command_for_brokers(tool: Tool) -> None:
    broker = str(tool.broker.ready.get("broker_id") or _broker_id(tool))
    entity = ("--entity-type", "brokers", "--entity-name", broker)
    tool("ConfigCommand", "--alter", *entity, "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2" in tool("ConfigCommand", "--describe", *entity)
    tool("ConfigCommand", "--alter", *entity, "--delete-config", "log.cleaner.threads")
    assert "log.cleaner.threads=2" not in tool("ConfigCommand", "--describe", *entity)


def _broker_id(tool: Tool) -> int:
    with tool.broker.client() as client:
        return int(client.call("Metadata", 1, {"Topics": []})["Brokers"][0]["NodeId"])


def test_get_offset_shell(tool: Tool) -> None:
    topic = tool.topic("offsets", records=5, partitions=2)
    out = tool("GetOffsetShell", "--topic", topic)
    assert sorted(re.findall(rf"{topic}:\d+:\d+", out)) == [f"{topic}:0:5", f"{topic}:1:0"]
    assert f"{topic}:0:0" in tool("GetOffsetShell", "--topic", topic, "--time", "earliest")
    assert f"{topic}:0:4" in tool("GetOffsetShell", "--topic", topic, "--time", "max-timestamp")


def test_log_dirs_command(tool: Tool) -> None:
    topic = tool.topic("logdirs", records=2)
    out = tool("LogDirsCommand", "--describe", "--topic-list", topic)
    described = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    (directory,) = described["brokers"][0]["logDirs"]
    assert directory["error"] is None
    assert directory["logDir"] == str(tool.broker.data_dir)
    (partition,) = directory["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 100


def test_delete_records_command(tool: Tool, tmp_path: Path) -> None:
    topic = tool.topic("delete", records=6)
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(wanted))
    out = tool("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 4", out)
    with tool.broker.client() as client:
        assert client.end_offset(topic, timestamp=-2) == 4


def test_broker_api_versions_command(tool: Tool) -> None:
    out = tool("BrokerApiVersionsCommand")
    with tool.broker.client() as client:
        produce = client.api_versions()[0]
    assert re.search(rf"Produce\(0\): {produce[0]} to {produce[1]}", out)
    assert "UNSUPPORTED" not in out.partition("Fetch(1)")[2].partition("\n")[0]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_producer_performance(tool: Tool, acks: str) -> None:
    topic = tool.topic(f"perf-{acks}")
    settings = [f"bootstrap.servers={tool.broker.address}", f"acks={acks}"]
    out = tool(
        "ProducerPerformance", "--topic", topic, "--num-records", "20000", "--record-size", "100", "--throughput", "-1",
        "--producer-props", *settings, bootstrap="",
    )  # fmt: skip
    assert "20000 records sent" in out
    with tool.broker.client() as client:
        assert client.end_offset(topic) == 20000


def test_console_consumer_of_one_partition(tool: Tool) -> None:
    """Without a group: assigned to the partition."""
    topic = tool.topic("console", records=3)
    out = tool("ConsoleConsumer", "--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "3")
    assert [line for line in out.splitlines() if line.startswith("value")] == ["value 0", "value 1", "value 2"]
