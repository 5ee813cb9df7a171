"""Names in a log directory, its lock, its clean-shutdown mark, meta.properties and partition.metadata."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import random_uuid
from pybroker.storage import directory as directories
from pybroker.storage.directory import DirectoryLock, list_partitions, parse_directory, suffixed_directory
from pybroker.storage.meta_properties import (
    MetaProperties,
    WrongDirectory,
    check_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from pybroker.storage.partition_metadata import CorruptPartitionMetadata, read_topic_id, write_topic_id
from tests.support import disk

HEX = "0123456789abcdef0123456789abcdef"
CLUSTER = "nWsHp_3ARcGuG51oFKnLew"


@pytest.mark.parametrize(
    ("name", "topic", "partition", "suffix"),
    [
        ("a-0", "a", 0, ""),
        ("my.topic-with-dashes-12", "my.topic-with-dashes", 12, ""),
        (f"a-b-3.{HEX}-delete", "a-b", 3, "-delete"),
        (f"a-3.{HEX}-future", "a", 3, "-future"),
        (f"a-3.{HEX}-stray", "a", 3, "-stray"),
    ],
)
def test_directory_names(name: str, topic: str, partition: int, suffix: str) -> None:
    assert parse_directory(Path("/d") / name) == (TopicPartition(topic, partition), suffix)


@pytest.mark.parametrize("name", ["notapartition", "a-", "-0", "a-x", "lost+found", f"a.{HEX}-delete"])
def test_foreign_names_are_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(WrongDirectory, match="Move it out of /d"):
        parse_directory(Path("/d") / name)


def test_suffixed_names_are_read_back_and_fit() -> None:
    name = suffixed_directory(TopicPartition("a", 5), "-delete")
    assert parse_directory(Path(name)) == (TopicPartition("a", 5), "-delete")
    long = suffixed_directory(TopicPartition("x" * 249, 5), "-delete")
    assert len(long) == 255
    assert parse_directory(Path(long)).suffix == "-delete"


def test_listing_passes_files_and_kafkas_own_directories_over(tmp_path: Path) -> None:
    for name in ("b-0", "a-1", "remote-log-index-cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata.db").touch()
    assert [path.name for path, _ in list_partitions(tmp_path)] == ["a-1", "b-0"]


def test_a_second_broker_is_excluded(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    code = (
        "import sys, pathlib\n"
        "from pybroker.storage.directory import DirectoryLock\n"
        "from pybroker.storage.meta_properties import WrongDirectory\n"
        "try: DirectoryLock(pathlib.Path(sys.argv[1]))\n"
        "except WrongDirectory as error: print(error)\n"
        "else: print('locked')\n"
    )

    def other() -> str:
        root = Path(__file__).resolve().parents[2] / ".src"
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True, text=True, check=True, timeout=30, env={"PYTHONPATH": str(root)},
        ).stdout.strip()  # fmt: skip

    assert "a broker is already running" in other()
    lock.release()
    assert other() == "locked"


def test_the_clean_shutdown_mark_is_kafkas(tmp_path: Path) -> None:
    _, recorded = disk.unpack("start-clean-then-cut", tmp_path)
    kafkas = (recorded / directories.CLEAN_SHUTDOWN_FILE).read_bytes()
    directories.write_clean_shutdown(tmp_path)
    assert directories.has_clean_shutdown(tmp_path)
    assert (tmp_path / directories.CLEAN_SHUTDOWN_FILE).read_bytes() == kafkas
    directories.remove_clean_shutdown(tmp_path)
    directories.remove_clean_shutdown(tmp_path)
    assert not directories.has_clean_shutdown(tmp_path)


def test_meta_properties(tmp_path: Path) -> None:
    assert read_meta_properties(tmp_path) is None
    write_meta_properties(tmp_path, 7, CLUSTER)
    assert read_meta_properties(tmp_path) == MetaProperties(7, CLUSTER)
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert lines[0] == "#"
    assert lines[1].startswith("#")
    assert sorted(lines[2:]) == ["broker.id=7", f"cluster.id={CLUSTER}", "version=0"]


@pytest.mark.parametrize(
    ("case", "remedy"),
    [
        ("start-meta-version-1", "formatted for KRaft.*Set log.dirs to an empty directory"),
        ("start-meta-other-broker", "Set broker.id=8"),
        ("start-meta-other-cluster", "Set log.dirs to the directories of this cluster"),
    ],
)
def test_what_kafka_refuses_is_refused(case: str, remedy: str, tmp_path: Path) -> None:
    _, directory = disk.unpack(case, tmp_path)
    with pytest.raises(WrongDirectory, match=f"meta.properties says .*{remedy}"):
        check_meta_properties({directory: read_meta_properties(directory)}, 7, CLUSTER)


def test_kafkas_directory_is_accepted(tmp_path: Path) -> None:
    _, directory = disk.unpack("crash-plain", tmp_path)
    new = tmp_path / "new"
    found = {directory: read_meta_properties(directory), new: None}
    assert check_meta_properties(found, 7, CLUSTER) == [new]


def test_partition_metadata(tmp_path: Path) -> None:
    assert read_topic_id(tmp_path) is None
    (tmp_path / "partition.metadata").touch()
    assert read_topic_id(tmp_path) is None
    topic_id = random_uuid()
    write_topic_id(tmp_path, topic_id)
    assert read_topic_id(tmp_path) == topic_id
    _, directory = disk.unpack("topic-segs", tmp_path)
    path = next(directory.rglob("partition.metadata"))
    kafkas = path.read_bytes()
    found = read_topic_id(path.parent)
    assert found is not None
    write_topic_id(path.parent, found)
    assert path.read_bytes() == kafkas


@pytest.mark.parametrize("data", [b"version: 0\n", b"version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", b"\xff\0: x"])
def test_unreadable_partition_metadata_names_the_remedy(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_bytes(data)
    with pytest.raises(CorruptPartitionMetadata, match="Remove the file"):
        read_topic_id(tmp_path)
