"""Directories that Apache Kafka wrote, cleanly or not, open here and answer as they did there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import uuid_from_text
from pybroker.storage.log import Log
from pybroker.storage.log_manager import LogManager
from pybroker.storage.meta_properties import WrongDirectory
from tests.support import disk

RECORDED_MS = 1_796_051_600_000
SMALL = {"segment.bytes": "1200", "index.interval.bytes": "100", "segment.index.bytes": "4096"}

STARTS = [
    "start-clean-then-bitflip",
    "start-clean-then-cut",
    "start-clean-then-garbage",
    "start-clean-then-odd-index",
    "start-cleanshutdown-missing",
    "start-meta-missing",
    "start-suffix-dirs",
    "start-unknown-topic-dir",
]
REFUSALS = {
    "start-clean-then-zeros": "28.log holds something else than batches from position 130 on.*Remove .kafka_cleansh",
    "start-epoch-corrupt": "leader-epoch-checkpoint cannot be read: .*Remove it",
    "start-hw-corrupt": "replication-offset-checkpoint cannot be read: .*Remove it",
    "start-log-start-corrupt": "log-start-offset-checkpoint cannot be read: .*Remove it",
    "start-meta-other-broker": "says broker.id=8, but this is broker 7",
    "start-meta-other-cluster": "says cluster.id=AAAAAAAAAAAAAAAAAAAAAA",
    "start-meta-version-1": "formatted for KRaft",
    "start-not-a-partition-dir": "'notapartition' is not of the form topic-partition.*Move it out",
    "start-partition-metadata-corrupt": "partition.metadata cannot be read: .*Remove the file",
    "start-recovery-point-corrupt": "recovery-point-offset-checkpoint cannot be read: .*Remove it",
}
CLUSTER_IDS = {"start-meta-other-cluster": "nWsHp_3ARcGuG51oFKnLew"}


def start(directory: Path, overrides: dict[str, dict[str, str]], cluster_id: str | None = None) -> LogManager:
    manager = LogManager(BrokerConfig.of({}), [directory], ManualClock(RECORDED_MS))
    try:
        found = manager.open()
        manager.check_identity(7, cluster_id or found or "nWsHp_3ARcGuG51oFKnLew")
        manager.load(overrides)
    except WrongDirectory:
        for log_directory in manager.directories:
            log_directory.release()
        raise
    for log in manager.logs.values():
        lead(log, 0)  # which does not change with a restart of the only broker
    return manager


def lead(log: Log, epoch: int) -> None:
    """Become the leader and only replica."""
    if "message.format.version" not in log.config.overrides:
        log.start_leader_epoch(epoch)
    log.update_high_watermark(log.log_end_offset)


def answers(log: Log, expected: dict[str, Any]) -> dict[str, Any]:
    """What the log answers to the questions that `expected` holds the answers of."""

    def answer(offset: int, timestamp: int, epoch: int) -> dict[str, int]:
        return {"error": 0, "offset": offset, "timestamp": timestamp, "leaderEpoch": epoch}

    def found(look_up: Callable[..., tuple[int, int, int] | None], *arguments: int) -> dict[str, int]:
        try:
            triple = look_up(*arguments)
        except KafkaError as error:
            return answer(-1, -1, -1) | {"error": error.code}
        timestamp, offset, epoch = triple or (-1, -1, -1)
        return answer(offset, timestamp, epoch)

    earliest = log.leader_epochs.epoch_for_offset(log.log_start_offset)
    result: dict[str, Any] = {
        "earliest": answer(log.log_start_offset, -1, -1 if earliest is None else earliest),
        "latest": answer(log.log_end_offset, -1, 0),  # with the leader's epoch
        "latest read_committed (LSO)": answer(log.last_stable_offset, -1, 0),
        "max timestamp": found(log.max_timestamp_offset),
        "by timestamp": [
            {"query": row["query"], **found(log.offset_for_timestamp, row["query"])} for row in expected["by timestamp"]
        ],
        "offsetForLeaderEpoch": [],
        "producers": [
            {
                "ProducerId": entry.producer_id,
                "ProducerEpoch": entry.epoch,
                "LastSequence": entry.last_sequence,
                "LastTimestamp": entry.last_timestamp,
                "CoordinatorEpoch": entry.coordinator_epoch,
                "CurrentTxnStartOffset": entry.txn_first_offset,
            }
            for entry in sorted(log.producers.entries.values(), key=lambda entry: entry.producer_id)
        ],
    }
    for row in expected["offsetForLeaderEpoch"]:
        epoch, end = log.end_offset_for_epoch(row["epoch"])
        result["offsetForLeaderEpoch"].append(
            {"epoch": row["epoch"], "error": 0, "leaderEpoch": epoch, "endOffset": end}
        )
    return result


def check(log: Log, expected: dict[str, Any]) -> None:
    got = answers(log, expected)
    assert got == {name: expected[name] for name in got}
    fetch = expected["fetch read_committed from log start"]
    assert fetch["lastStableOffset"] == log.last_stable_offset
    assert fetch["logStartOffset"] == log.log_start_offset
    read = log.read(log.log_start_offset, 1 << 20, max_offset=log.last_stable_offset, blocking=True)
    aborted = [{"ProducerId": producer, "FirstOffset": first} for producer, first in log.aborted_in(read)]
    assert aborted == fetch["abortedTransactions"]


@pytest.mark.parametrize("case", disk.cases("crash-"))
def test_a_crash_is_recovered_to_what_kafka_recovers_to(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    recovered = facts["recoveryByKafka"]
    manager = start(directory, {case: facts["topicConfig"]})
    log = manager.logs[TopicPartition(case, 0)]
    check(log, recovered["answers"])
    manager.shutdown()
    files = {path.name: disk.describe(path) for path in log.directory.iterdir()}
    after = recovered["filesAfterCleanShutdown"]
    expected = {name.rpartition("/")[2]: file for name, file in after.items() if not name.endswith(".metadata")}
    files.pop("partition.metadata", None)
    assert files == expected


@pytest.mark.parametrize("case", STARTS)
def test_what_kafka_starts_on_is_started_on(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    assert facts["started"]
    manager = start(directory, {"crash-plain": SMALL})
    check(manager.logs[TopicPartition("crash-plain", 0)], facts["answers"])
    manager.shutdown()


@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_what_kafka_refuses_is_refused(case: str, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    assert not facts["started"]
    for name in facts["directoriesAfter"] or ():
        (directory / name).mkdir(exist_ok=True)  # empty ones are not in the archive
    with pytest.raises(WrongDirectory, match=REFUSALS[case]):
        start(directory, {"crash-plain": SMALL}, CLUSTER_IDS.get(case))


@pytest.mark.parametrize(
    "case",
    [
        *disk.cases("topic-"),
        "after-restart", "compact-before", "compact-after", "format-v0", "format-v1", "produced-by-hand",
    ],
)  # fmt: skip
@pytest.mark.parametrize("clean", [True, False])
def test_the_partitions_of_a_clean_stop_answer_as_before(case: str, clean: bool, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    live = facts["answers from the live broker"]
    topics = facts.get("topicConfigs") or {case.removeprefix("topic-"): facts.get("topicConfig") or {}}
    if clean:
        (directory / ".kafka_cleanshutdown").touch()
    manager = start(directory, topics)
    assert manager.logs
    for partition, log in manager.logs.items():
        name = str(partition)
        check(log, live.get(name, live))
    manager.shutdown()


@pytest.mark.parametrize("case", ["group-offsets", "transaction-state"])
@pytest.mark.parametrize("how", ["clean", "unclean", "without indexes"])
def test_the_coordinators_partitions(case: str, how: str, tmp_path: Path) -> None:
    """They end where the checkpoints say, and their files, which may have been rebuilt, are Kafka's when closed."""
    facts, directory = disk.unpack(case, tmp_path)
    if how != "clean":
        (directory / ".kafka_cleanshutdown").unlink()
    if how == "without indexes":
        for path in [*directory.glob("*/*.index"), *directory.glob("*/*.timeindex")]:
            path.unlink()
    compacted = {"cleanup.policy": "compact"}
    manager = start(directory, {"__consumer_offsets": compacted, "__transaction_state": compacted})
    ends = {line for line in facts["topLevel"]["recovery-point-offset-checkpoint"].splitlines() if line.count(" ") == 2}
    assert {
        f"{partition.topic} {partition.partition} {log.log_end_offset}" for partition, log in manager.logs.items()
    } <= ends
    manager.shutdown()
    expected = {name: file for name, file in facts["files"].items() if "/" in name}
    assert expected == {name: disk.describe(directory / name) for name in expected}


def test_a_topic_id_that_is_another_ones(tmp_path: Path) -> None:
    """The start goes well; the partition is refused when its topic's own id is told."""
    case = "start-partition-metadata-other-topic-id"
    facts, directory = disk.unpack(case, tmp_path)
    assert facts["started"]
    manager = start(directory, {"crash-plain": SMALL})
    metadata = directory / "crash-plain-0" / "partition.metadata"
    before = metadata.read_bytes()
    with pytest.raises(KafkaError) as error:
        manager.get_or_create(TopicPartition("crash-plain", 0), uuid_from_text("kiOKWRVnSiWdfchXlOQ6Bw"), SMALL)
    assert error.value.code == Errors.INCONSISTENT_TOPIC_ID
    assert metadata.read_bytes() == before
    manager.shutdown()


@pytest.mark.parametrize("case", ["whole-dir-clean", "whole-dir-after-restart"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_whole_directory_of_kafkas(case: str, clean: bool, tmp_path: Path) -> None:
    facts, directory = disk.unpack(case, tmp_path)
    if not clean:
        (directory / ".kafka_cleanshutdown").unlink()
    manager = start(directory, facts["topicConfigs"])
    partitions = facts["answers from the live broker"]["partitions"]
    assert len(partitions) > 10
    for name, expected in partitions.items():
        topic, _, partition = name.rpartition("-")
        if "by timestamp" in expected:
            check(manager.logs[TopicPartition(topic, int(partition))], expected)
    manager.shutdown()


def test_two_log_directories_of_a_cluster_with_many_leader_epochs(tmp_path: Path) -> None:
    facts, directory = disk.unpack("cluster-broker-3", tmp_path)
    manager = LogManager(BrokerConfig.of({}), [directory / "a", directory / "b"], ManualClock(RECORDED_MS))
    cluster_id = manager.open()
    assert cluster_id is not None
    manager.check_identity(3, cluster_id)
    manager.load()
    asked = facts["answers after starting this broker alone on it"]["partitions"]
    assert asked
    for name, expected in asked.items():
        topic, _, partition = name.rpartition("-")
        log = manager.logs[TopicPartition(topic, int(partition))]
        lead(log, expected["leaderEpoch"])
        epochs = [[row[0], 0, *log.end_offset_for_epoch(row[0])] for row in expected["offsetForLeaderEpoch"]]
        assert epochs == expected["offsetForLeaderEpoch"], name
        assert log.log_end_offset == expected["latest"][1]
        found = log.max_timestamp_offset()
        timestamp, offset, epoch = found or (-1, -1, -1)
        assert [0, offset, timestamp, epoch] == expected["max timestamp"], name
    manager.shutdown()
