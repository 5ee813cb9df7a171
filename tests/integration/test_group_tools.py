"""ConsumerGroupCommand and the console consumer of Apache Kafka 3.9.2 and 4.3.1 at work on groups here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_java_tools import Tool
from tests.support.broker import BrokerProcess
from tests.support.java import RELEASES, need_java
from tests.support.records import batch
from tests.support.wire import WireClient

pytestmark = pytest.mark.timeout(900)
RECORDS = 10


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("group-tools")) / "data") as running:
        yield running


@pytest.fixture(params=RELEASES)
def tool(request: pytest.FixtureRequest, broker: BrokerProcess) -> Tool:
    need_java(request.param)
    return Tool(request.param, broker)


class Groups:
    """The command on one group, and the group's offsets as it tells them."""

    def __init__(self, tool: Tool, group: str, topic: str) -> None:
        self.tool, self.group, self.topic = tool, group, topic

    def __call__(self, *arguments: str) -> str:
        return self.tool("ConsumerGroupCommand", *arguments)

    def reset(self, *how: str) -> list[int]:
        """New offsets by partition, after the command has reset them."""
        out = self("--reset-offsets", "--group", self.group, "--topic", self.topic, *how, "--execute")
        rows = re.findall(rf"{self.group}\s+{self.topic}\s+(\d+)\s+(\d+)", out)  # 3.9.2 writes all on one line
        return [int(offset) for _, offset in sorted(rows)]


def commit(client: WireClient, group: str, topic: str, offsets: list[int]) -> None:
    partitions = [{"PartitionIndex": at, "CommittedOffset": offset} for at, offset in enumerate(offsets)]
    request = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "Topics": [{"Name": topic, "Partitions": partitions}]}
    answer = client.call("OffsetCommit", 8, request)
    assert all(each["ErrorCode"] == 0 for each in answer["Topics"][0]["Partitions"])


def test_a_console_consumer_in_a_group(tool: Tool) -> None:
    topic = tool.topic("console", RECORDS)
    group = f"console-{tool.suffix}"
    out = tool(
        "ConsoleConsumer", "--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(RECORDS)
    )
    assert [line for line in out.splitlines() if line.startswith("value")] == [f"value {at}" for at in range(RECORDS)]
    command = Groups(tool, group, topic)
    assert group in command("--list").splitlines()
    described = command("--describe", "--group", group)
    assert re.search(rf"{group}\s+{topic}\s+0\s+{RECORDS}\s+{RECORDS}\s+0\s+-\s+-\s+-", described)
    assert re.search(rf"{group}\s.*Empty\s+0", command("--describe", "--group", group, "--state"))


def test_offsets_are_reset_and_deleted(tool: Tool, broker: BrokerProcess) -> None:
    topic, group = tool.topic("reset", partitions=2), f"reset-{tool.suffix}"
    began = int(time.time() * 1000) - 1000 * RECORDS
    with broker.client() as client:
        for partition in range(2):
            for number in range(RECORDS):
                records = batch([b"x"], ts=began + 1000 * number)
                assert client.produce(topic, records, partition=partition)["ErrorCode"] == 0
        commit(client, group, topic, [5, 6])
    command = Groups(tool, group, topic)
    assert command.reset("--to-earliest") == [0, 0]
    assert command.reset("--to-latest") == [RECORDS, RECORDS]
    assert command.reset("--shift-by", "-4") == [6, 6]
    assert command.reset("--to-current") == [6, 6]
    assert command.reset("--to-offset", "3") == [3, 3]
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000", time.gmtime((began + 4500) / 1000))
    assert command.reset("--to-datetime", at) in ([4, 4], [5, 5])
    assert command.reset("--by-duration", "PT0S") == [RECORDS, RECORDS]
    reset = ("--reset-offsets", "--group", group)
    command(*reset, "--topic", f"{topic}:1", "--to-offset", "7", "--execute")
    planned = command(*reset, "--all-topics", "--to-earliest", "--dry-run")
    assert len(re.findall(rf"{group}\s+{topic}\s+\d\s+0", planned)) == 2
    described = command("--describe", "--group", group, "--offsets")
    assert sorted(re.findall(rf"{group}\s+{topic}\s+(\d)\s+(\d+)", described)) == [("0", str(RECORDS)), ("1", "7")]
    exported = command(*reset, "--topic", topic, "--to-offset", "2", "--export", "--dry-run")
    plan = broker.data_dir.parent / f"{group}.csv"
    plan.write_text("\n".join(line for line in exported.splitlines() if topic in line) + "\n")
    command(*reset, "--from-file", str(plan), "--execute")
    described = command("--describe", "--group", group, "--offsets")
    assert len(re.findall(rf"{group}\s+{topic}\s+\d\s+2\s+{RECORDS}\s+{RECORDS - 2}\s", described)) == 2

    command("--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert not re.search(rf"{group}\s+{topic}\s+1\s+2\s", command("--describe", "--group", group))
    assert "successful" in command("--delete", "--group", group)
    assert group not in command("--list").splitlines()


def test_members_are_described(tool: Tool, broker: BrokerProcess) -> None:
    from confluent_kafka import Consumer

    topic, group = tool.topic("members", RECORDS), f"members-{tool.suffix}"
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group, "client.id": "somebody"})
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 20
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < deadline
        command = Groups(tool, group, topic)
        members = command("--describe", "--group", group, "--members", "--verbose")
        assert re.search(rf"{group}\s+somebody-[0-9a-f-]+\s+/127.0.0.1\s+somebody\s+1\s.*(\(0\)|{topic})", members)
        assert re.search(
            rf"{group}\s.*Stable\s+(-\s+)*1", command("--describe", "--group", group, "--state", "--verbose")
        )
        assert re.search(rf"{group}\s+Stable", command("--list", "--state", "stable"))
        assert "not empty" in command("--delete", "--group", group).replace("NonEmpty", "not empty")
    finally:
        consumer.close()
