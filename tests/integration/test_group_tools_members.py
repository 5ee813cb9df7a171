"""ConsumerGroupCommand of Apache Kafka 3.9.2 and 4.3.1 on groups that have members, of both protocols."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.integration.test_java_tools import Tool
from tests.support.broker import BrokerProcess
from tests.support.java import RELEASES, need_java
from tests.support.records import batch

pytestmark = pytest.mark.timeout(600)
TOPIC, RECORDS = "described", 4
SOMEBODY = r"\S+\s+/127.0.0.1\s+somebody"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("group-members")) / "data") as running:
        yield running


@pytest.fixture(scope="module")
def members(broker: BrokerProcess) -> Iterator[None]:
    """A group `classic` and a group `consumer`, of one member each that has read and committed all."""
    with broker.client() as wire:
        wire.create_topic(TOPIC)
        assert wire.produce(TOPIC, batch([b"x"] * RECORDS))["ErrorCode"] == 0
    consumers = []
    for protocol in ("classic", "consumer"):
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address, "group.id": protocol, "group.protocol": protocol,
                "client.id": "somebody", "auto.offset.reset": "earliest", "enable.auto.commit": False,
            }
        )  # fmt: skip
        consumers.append(consumer)
        consumer.subscribe([TOPIC])
        read, deadline = 0, time.monotonic() + 30
        while read < RECORDS:
            read += len([each for each in consumer.consume(RECORDS, 0.2) if each.error() is None])
            assert time.monotonic() < deadline, "no records"
        consumer.commit(asynchronous=False)
    yield
    for consumer in consumers:
        consumer.close()


@pytest.fixture(params=RELEASES)
def tool(request: pytest.FixtureRequest, broker: BrokerProcess, members: None) -> Tool:
    need_java(request.param)
    return Tool(request.param, broker)


def test_list_by_type(tool: Tool) -> None:
    assert re.findall(r"^(\w+)\s+Consumer\s*$", tool("ConsumerGroupCommand", "--list", "--type", "consumer"), re.M) == [
        "consumer"
    ]
    both = tool("ConsumerGroupCommand", "--list", "--type", "--state")
    assert re.search(r"^classic\s+Classic\s+Stable", both, re.M)
    assert re.search(r"^consumer\s+Consumer\s+Stable", both, re.M)


def test_members_and_state_of_the_consumer_protocol(tool: Tool) -> None:
    described = tool("ConsumerGroupCommand", "--describe", "--group", "consumer", "--members", "--verbose")
    epochs = rf"\d+\s+{TOPIC}:0\s+\d+\s+{TOPIC}:0" if tool.release == "4.3.1" else r"\(0\)"
    assert re.search(rf"^consumer\s+{SOMEBODY}\s+1\s+{epochs}", described, re.M)
    state = tool("ConsumerGroupCommand", "--describe", "--group", "consumer", "--state", "--verbose")
    epochs = r"\d+\s+\d+\s+" if tool.release == "4.3.1" else ""
    assert re.search(rf"^consumer\s+\S+\s+\(1001\)\s+uniform\s+Stable\s+{epochs}1", state, re.M)


def test_offsets_of_all_groups(tool: Tool) -> None:
    described = tool("ConsumerGroupCommand", "--describe", "--all-groups", "--offsets", "--verbose")
    epoch = r"0\s+" if tool.release == "4.3.1" else ""
    for group in ("classic", "consumer"):
        assert re.search(rf"^{group}\s+{TOPIC}\s+0\s+{epoch}{RECORDS}\s+{RECORDS}\s+0\s+{SOMEBODY}", described, re.M)


def test_what_is_refused_while_there_are_members(tool: Tool) -> None:
    out = tool(
        "ConsumerGroupCommand", "--reset-offsets", "--all-groups", "--all-topics", "--to-earliest", "--execute"
    )
    for group in ("classic", "consumer"):
        assert f"only be reset if the group '{group}' is inactive, but the current state is Stable" in out
    out = tool("ConsumerGroupCommand", "--delete", "--group", "consumer", "--group", "nobody")
    assert "Group 'consumer' could not be deleted due to" in out
    assert "GroupNotEmptyException" in out
    assert "GroupIdNotFoundException" in out
