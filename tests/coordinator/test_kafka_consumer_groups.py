"""Records of consumer groups that Apache Kafka 4.3.1 wrote: read, written again byte for byte, and replayed into groups
that are described as Kafka described them at that moment."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from pybroker.coordinator import records
from pybroker.coordinator.consumer.catalog import Topic
from pybroker.coordinator.effects import Effects
from pybroker.protocol import codec
from pybroker.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from tests.coordinator.consumer_side import ConsumerHarness
from tests.support import schema

DATA = Path(__file__).resolve().parents[1] / "data" / "coordinator" / "consumer-groups-4.3.1.json.xz"


@cache
def recorded() -> tuple[list[tuple[bytes, bytes | None]], dict[str, dict[str, Any]]]:
    """The records by partition and offset, and the groups as ConsumerGroupDescribe told them (topic ids as hex)."""
    found = json.loads(lzma.decompress(DATA.read_bytes()))
    rows = [(bytes.fromhex(key), None if value is None else bytes.fromhex(value)) for key, value in found["records"]]
    return rows, found["groups"]


def test_records_are_written_as_they_were_read() -> None:
    rows, _ = recorded()
    assert len(rows) > 1000
    for key, value in rows:
        if key[:2] == b"\0\2":
            continue  # of classic groups: test_kafka_logs
        assert records.encode(records.decode(key, value)) == (key, value)


def test_groups_are_as_kafka_described_them() -> None:
    rows, groups = recorded()
    harness = ConsumerHarness()
    for group in groups.values():
        for member in group["Members"]:
            for which in ("Assignment", "TargetAssignment"):
                for part in member[which]["TopicPartitions"]:
                    topic_id = bytes.fromhex(part["TopicId"])
                    harness.catalog.topics[part["TopicName"]] = Topic(topic_id, 99)
    for key, value in rows:
        harness.shard.replay(records.decode(key, value))
    harness.shard.loaded(Effects())
    ours = {group_id for group_id, group in harness.shard.groups.items() if group.type == "consumer"}
    assert ours == set(groups)
    for group_id, group in groups.items():
        assert described(harness, group_id) == comparable(group)


def described(harness: ConsumerHarness, group_id: str) -> dict[str, Any]:
    """Ours, by way of the wire."""
    response = ConsumerGroupDescribeResponse(groups=[harness.consumer.describe(group_id)])
    body = b"\0\0\0\1\0" + codec.encode_bytes(response, 1)
    group: dict[str, Any] = schema.decode_response("ConsumerGroupDescribe", 1, body)[1]["Groups"][0]
    for member in group["Members"]:
        for which in ("Assignment", "TargetAssignment"):
            for part in member[which]["TopicPartitions"]:
                part["TopicId"] = part["TopicId"].hex()
    return comparable(group)


def comparable(group: dict[str, Any]) -> dict[str, Any]:
    """Without the order of what is a set."""
    group = json.loads(json.dumps(group))
    group["Members"].sort(key=lambda member: str(member["MemberId"]))
    for member in group["Members"]:
        member["SubscribedTopicNames"].sort()
        for which in ("Assignment", "TargetAssignment"):
            parts = member[which]["TopicPartitions"]
            parts.sort(key=lambda part: str(part["TopicName"]))
            for part in parts:
                part["Partitions"].sort()
    return group
