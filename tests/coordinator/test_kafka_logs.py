"""Logs of __consumer_offsets that Apache Kafka 3.9.2 wrote: read, written again byte for byte, and replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.coordinator import records
from pybroker.coordinator.effects import Effects
from pybroker.coordinator.partitioner import partition_for
from pybroker.coordinator.settings import GroupSettings
from pybroker.coordinator.shard import GroupShard
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.records.header import BatchHeader, iter_headers
from pybroker.protocol.records.record import Record, iter_records, read_end_txn_marker
from tests.support import disk

CASES = ["group-offsets", "whole-dir-clean", "whole-dir-after-restart"]
WHEN = 1_796_051_600_000


def batches(partition: Path) -> Iterator[tuple[BatchHeader, list[Record]]]:
    for segment in sorted(partition.glob("*.log")):
        data = memoryview(segment.read_bytes())
        for at, header in iter_headers(data):
            batch = data[at : at + header.size]
            yield header, list(iter_records(batch, header))


def replayed(partition: Path) -> GroupShard:
    shard = GroupShard(GroupSettings(), ManualClock(WHEN))
    for header, found in batches(partition):
        for record in found:
            if header.is_control:
                marker = read_end_txn_marker(record)
                assert marker is not None
                shard.end_transaction(header.producer_id, marker.commit)
            else:
                assert record.key is not None
                producer_id = header.producer_id if header.is_transactional else None
                shard.replay(records.decode(record.key, record.value), producer_id)
    shard.loaded(Effects())
    return shard


def partitions(directory: Path) -> list[Path]:
    found = sorted(directory.glob("__consumer_offsets-*"))
    assert found
    return found


@pytest.mark.parametrize("case", CASES)
def test_records_are_written_as_they_were_read(case: str, tmp_path: Path) -> None:
    _, directory = disk.unpack(case, tmp_path)
    seen = 0
    for partition in partitions(directory):
        for header, found in batches(partition):
            if header.is_control:
                continue
            for record in found:
                assert record.key is not None
                assert records.encode(records.decode(record.key, record.value)) == (record.key, record.value)
                seen += 1
    assert seen > 5


def test_groups_are_told_as_kafka_told_them(tmp_path: Path) -> None:
    facts, directory = disk.unpack("group-offsets", tmp_path)
    answers = facts["answers from the live broker"]
    groups = {name: told for name, told in answers.items() if isinstance(told, dict) and "describe" in told}
    assert len(groups) == 5
    found = partitions(directory)
    shards = [replayed(directory / f"__consumer_offsets-{index}") for index in range(len(found))]
    for name, told in groups.items():
        shard = shards[partition_for(name, len(found))]
        check_description(shard, name, told["describe"])
        check_offsets(shard, name, told["offsets"])
    listed = {name: group.state_name for shard in shards for name, group in shard.groups.items()}
    assert listed == {each["GroupId"]: each["GroupState"] for each in answers["list"]}


def check_description(shard: GroupShard, name: str, told: dict[str, Any]) -> None:
    group = shard.describe(name, 5)
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        told["GroupState"], told["ProtocolType"], told["ProtocolData"],
    )  # fmt: skip
    members = [
        (
            each.member_id, each.group_instance_id, each.client_id, each.client_host, each.member_metadata.hex(),
            each.member_assignment.hex(),
        )
        for each in group.members
    ]  # fmt: skip
    names = ("MemberId", "GroupInstanceId", "ClientId", "ClientHost", "MemberMetadata", "MemberAssignment")
    assert members == [tuple(each[name] for name in names) for each in told["Members"]]


def check_offsets(shard: GroupShard, name: str, told: dict[str, Any]) -> None:
    found = {
        place: (state.offset.offset, state.offset.leader_epoch, state.offset.metadata, state.error)
        for place, state in shard.fetch(name, None, False)
        if state.offset is not None
    }
    wanted = {
        (topic["Name"], each["PartitionIndex"]): (
            each["CommittedOffset"], each["CommittedLeaderEpoch"], each["Metadata"], each["ErrorCode"],
        )
        for topic in told["Topics"]
        for each in topic["Partitions"]
    }  # fmt: skip
    assert found == wanted
