"""Logs that Apache Kafka wrote, asked through the handlers: every recorded answer comes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.broker.fetch_sessions import FetchSessionCache
from pybroker.protocol.messages import (
    describe_producers,
    fetch,
    leader_and_isr,
    list_offsets,
    offset_for_leader_epoch,
)
from pybroker.protocol.records import legacy
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import ZERO_UUID, uuid_from_text
from pybroker.protocol.work import Workshop
from pybroker.replication.fetch import PartitionReader
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.log_manager import LogManager
from tests.broker.room import Room
from tests.storage.test_kafka_directories import SMALL, start
from tests.support import disk

BROKER_ID = 7
MOST = 1 << 20
NO_EPOCH = -1
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
READ_COMMITTED = 1
LIVE = "answers from the live broker"


@asynccontextmanager
async def open_room(manager: LogManager, topic_ids: dict[str, bytes] | None = None) -> AsyncIterator[Room]:
    """Handlers over these logs, all of which this broker is told to lead."""
    clock = manager.clock
    replicas = ReplicaManager(
        BROKER_ID, manager, clock, lambda topic, index: manager.get(TopicPartition(topic, index)), lambda topic: {}
    )
    reader = PartitionReader(replicas.partition, clock.monotonic_ms)
    threads = ThreadPoolExecutor(1)
    services = SimpleNamespace(
        replica_manager=replicas,
        metadata_cache=SimpleNamespace(topics={partition.topic for partition in manager.logs}, topic_name=None),
        fetch_sessions=FetchSessionCache(10, clock.monotonic_ms),
        partition_reader=reader,
        fetch_max_bytes=MOST,
        reader_threads=None,
        workshop=Workshop(threads),
    )
    states = [
        leader_and_isr.LeaderAndIsrTopicState(
            topic_name=partition.topic,
            topic_id=(topic_ids or {}).get(partition.topic) or log.topic_id or ZERO_UUID,
            partition_states=[
                leader_and_isr.LeaderAndIsrPartitionState(
                    partition_index=partition.partition,
                    leader=BROKER_ID,
                    leader_epoch=0,
                    isr=[BROKER_ID],
                    replicas=[BROKER_ID],
                )
            ],
        )
        for partition, log in manager.logs.items()
    ]
    without_epochs = [
        log
        for log in manager.logs.values()
        if "message.format.version" in log.config.overrides and log.latest_epoch == NO_EPOCH
    ]
    await replicas.become_leader_or_follower(leader_and_isr.LeaderAndIsrRequest(topic_states=states))
    for log in without_epochs:
        log.leader_epochs.clear()  # in Kafka a topic of an old format has none; here it has from now on
    try:
        yield Room(services, None)  # type: ignore[arg-type]
    finally:
        threads.shutdown()
        manager.shutdown()


async def listed(room: Room, where: TopicPartition, timestamp: int, isolation: int = 0) -> dict[str, int]:
    wanted = list_offsets.ListOffsetsPartition(partition_index=where.partition, timestamp=timestamp)
    topics = [list_offsets.ListOffsetsTopic(name=where.topic, partitions=[wanted])]
    response = await room.call(
        list_offsets.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics), 7
    )
    found = response.topics[0].partitions[0]
    return {
        "error": found.error_code,
        "offset": found.offset,
        "timestamp": found.timestamp,
        "leaderEpoch": found.leader_epoch,
    }


async def end_of_epoch(room: Room, where: TopicPartition, epoch: int) -> dict[str, int]:
    wanted = offset_for_leader_epoch.OffsetForLeaderPartition(partition=where.partition, leader_epoch=epoch)
    topics = [offset_for_leader_epoch.OffsetForLeaderTopic(topic=where.topic, partitions=[wanted])]
    response = await room.call(offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=topics), 3)
    found = response.topics[0].partitions[0]
    return {
        "epoch": epoch,
        "error": found.error_code,
        "leaderEpoch": found.leader_epoch,
        "endOffset": found.end_offset,
    }


async def fetched(room: Room, where: TopicPartition, offset: int, version: int, isolation: int = 0) -> Any:
    wanted = fetch.FetchPartition(partition=where.partition, fetch_offset=offset, partition_max_bytes=MOST)
    topics = [fetch.FetchTopic(topic=where.topic, partitions=[wanted])]
    request = fetch.FetchRequest(
        max_bytes=MOST, isolation_level=isolation, session_epoch=-1, topics=topics, max_wait_ms=0
    )
    return (await room.call(request, version)).responses[0].partitions[0]


async def committed(room: Room, where: TopicPartition, expected: dict[str, Any]) -> dict[str, Any]:
    """The read_committed Fetch from the log's start; the start that was recorded is asked for."""
    found = await fetched(room, where, max(0, expected["logStartOffset"]), 11, READ_COMMITTED)
    aborted = found.aborted_transactions
    return {
        "error": found.error_code,
        "highWatermark": found.high_watermark,
        "lastStableOffset": found.last_stable_offset,
        "logStartOffset": found.log_start_offset,
        "abortedTransactions": None
        if aborted is None
        else [{"ProducerId": each.producer_id, "FirstOffset": each.first_offset} for each in aborted],
        "recordBytes": len(found.records or b""),
    }


async def producers(room: Room, where: TopicPartition) -> list[dict[str, int]]:
    topics = [describe_producers.TopicRequest(name=where.topic, partition_indexes=[where.partition])]
    response = await room.call(describe_producers.DescribeProducersRequest(topics=topics), 0)
    found = response.topics[0].partitions[0].active_producers
    return [
        {
            "ProducerId": each.producer_id,
            "ProducerEpoch": each.producer_epoch,
            "LastSequence": each.last_sequence,
            "LastTimestamp": each.last_timestamp,
            "CoordinatorEpoch": each.coordinator_epoch,
            "CurrentTxnStartOffset": each.current_txn_start_offset,
        }
        for each in sorted(found, key=lambda each: each.producer_id)
    ]


async def check(room: Room, where: TopicPartition, expected: dict[str, Any]) -> None:
    by_timestamp = expected["by timestamp"]
    fetch_name = "fetch read_committed from log start"
    got = {
        "earliest": await listed(room, where, EARLIEST),
        "latest": await listed(room, where, LATEST),
        "latest read_committed (LSO)": await listed(room, where, LATEST, READ_COMMITTED),
        "max timestamp": await listed(room, where, MAX_TIMESTAMP),
        "by timestamp": [{"query": row["query"], **await listed(room, where, row["query"])} for row in by_timestamp],
        "offsetForLeaderEpoch": [
            await end_of_epoch(room, where, row["epoch"]) for row in expected["offsetForLeaderEpoch"]
        ],
        fetch_name: await committed(room, where, expected[fetch_name]),
        "producers": await producers(room, where),
    }
    assert got == expected, str(where)


def ask_all(manager: LogManager, expected: dict[str, Any]) -> None:
    """Every partition for which answers are recorded; `expected` is one partition's where there is only one."""

    async def ask() -> None:
        async with open_room(manager) as room:
            for where in list(manager.logs):
                answers = expected if "by timestamp" in expected else expected.get(str(where), {})
                if "by timestamp" in answers:
                    await check(room, where, answers)

    assert manager.logs
    asyncio.run(ask())


@pytest.mark.parametrize("case", disk.cases("crash-"))
def test_after_a_crash(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    ask_all(start(directory, {case: facts["topicConfig"]}), facts["recoveryByKafka"]["answers"])


@pytest.mark.parametrize(
    "case",
    [
        *disk.cases("topic-"),
        "after-restart", "compact-before", "compact-after", "format-v0", "format-v1", "produced-by-hand",
    ],
)  # fmt: skip
def test_partitions_of_a_clean_stop(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    topics = facts.get("topicConfigs") or {case.removeprefix("topic-"): facts.get("topicConfig") or {}}
    (directory / ".kafka_cleanshutdown").touch()
    ask_all(start(directory, topics), facts[LIVE])


@pytest.mark.parametrize("case", ["whole-dir-clean", "whole-dir-after-restart"])
def test_a_whole_directory(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    ask_all(start(directory, facts["topicConfigs"]), facts[LIVE]["partitions"])


def test_a_topic_id_that_is_another_ones(tmp_path: Path) -> None:
    facts, directory = disk.unpack("start-partition-metadata-other-topic-id", tmp_path)
    manager = start(directory, {"crash-plain": SMALL})

    async def ask() -> None:
        async with open_room(manager, {"crash-plain": uuid_from_text("kiOKWRVnSiWdfchXlOQ6Bw")}) as room:
            await check(room, TopicPartition("crash-plain", 0), facts["answers"])

    asyncio.run(ask())


def test_old_fetches_of_what_old_producers_sent(tmp_path: Path) -> None:
    """Converted down where need be, the records are those that Kafka answered with."""
    facts, directory = disk.unpack("produced-by-hand", tmp_path)
    manager = start(directory, facts["topicConfigs"])

    async def ask() -> None:
        async with open_room(manager) as room:
            for name, expected in facts["fetched"].items():
                topic, _, version = name.partition(" Fetch v")
                found = await fetched(room, TopicPartition(topic, 0), 0, int(version))
                assert (found.error_code, found.high_watermark) == (expected["error"], expected["highWatermark"])
                if int(version) < 4:
                    assert messages(found.records) == messages(bytes.fromhex(expected["recordsHex"])), name
                else:
                    assert bytes(found.records).hex() == expected["recordsHex"], name

    asyncio.run(ask())


def messages(data: Any) -> list[tuple[int, int, bytes | None, bytes]]:
    """(offset, timestamp, key, value) of every message of a set, which half a one may fill up to its size."""
    found, at, data = [], 0, bytes(data)
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if end > len(data):
            break
        found += [
            (each.offset, each.timestamp, None if each.key is None else bytes(each.key), bytes(each.value or b""))
            for each in legacy.iter_records(data[at:end])
        ]
        at = end
    return found
