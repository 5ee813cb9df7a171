"""Compaction of what Kafka recorded before its cleaner ever ran, against what it recorded after."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.types import TopicPartition
from pybroker.storage.log_manager import LogManager
from tests.storage.compaction import committed, records, run_pass
from tests.support import disk

CLEANED_MS = 1_796_137_937_799 - 86_400_000  # Kafka's delete horizon, less delete.retention.ms
KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def load(directory: Path, topics: dict[str, dict[str, str]]) -> LogManager:
    (directory / ".kafka_cleanshutdown").touch()
    manager = LogManager(BrokerConfig.of({}), [directory], ManualClock(CLEANED_MS))
    cluster_id = manager.open()
    assert cluster_id is not None
    manager.check_identity(7, cluster_id)
    manager.load(topics)
    for log in manager.logs.values():
        log.update_high_watermark(log.log_end_offset)
    return manager


@pytest.mark.parametrize(("topic", "cleaned_to", "kept"), [("cmp", 64, 12), ("cmp0", 60, 8), ("cmptx", 36, 15)])
def test_the_files_are_those_that_kafka_wrote(topic: str, cleaned_to: int, kept: int, tmp_path: Path) -> None:
    facts, before = disk.unpack("compact-before", tmp_path)
    _, after = disk.unpack("compact-after", tmp_path)
    log = load(before, facts["topicConfigs"]).logs[TopicPartition(topic, 0)]
    active = log.active.base_offset
    finished = run_pass(log, CLEANED_MS)
    assert (finished.end_offset, finished.records_kept) == (cleaned_to, kept)
    # Kafka's cmp0 went on after the pass: its active segment is another.
    expected = closed_files(after / f"{topic}-0", active)
    assert len(expected) >= 14
    assert closed_files(log.directory, active) == expected


def closed_files(directory: Path, active: int) -> dict[str, bytes]:
    """The files of the segments below the active one."""
    paths = [path for path in directory.iterdir() if path.suffix in KINDS and int(path.stem) < active]
    return {path.name: path.read_bytes() for path in paths}


def test_where_kafka_ended_is_gone_on_from(tmp_path: Path) -> None:
    _, after = disk.unpack("compact-after", tmp_path)
    topics = disk.unpack("compact-before", tmp_path)[0]["topicConfigs"]
    manager = load(after, topics)
    cleaned = {partition.topic: log.cleaned_to for partition, log in manager.logs.items()}
    assert cleaned == {"cmp": 64, "cmp0": 60, "cmptx": 36}
    for log in manager.logs.values():
        held = records(log)
        log.roll()
        run_pass(log, CLEANED_MS)
        assert records(log).items() <= held.items()
        assert committed(log).keys() <= held.keys()
    manager.shutdown()
    text = (after / "cleaner-offset-checkpoint").read_text()
    assert sorted(text.splitlines()[2:]) == ["cmp 0 72", "cmp0 0 82", "cmptx 0 38"]
