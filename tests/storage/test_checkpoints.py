"""The checkpoint texts of a log directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.protocol.types import TopicPartition
from pybroker.storage import checkpoints
from pybroker.storage.checkpoints import CorruptCheckpoint
from tests.support import disk

OFFSETS = {TopicPartition("a", 0): 5, TopicPartition("b.c-1", 12): 0}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / checkpoints.RECOVERY_POINT
    assert checkpoints.read_offsets(path) == {}
    checkpoints.write_offsets(path, OFFSETS)
    assert path.read_text() == "0\n2\na 0 5\nb.c-1 12 0\n"
    assert checkpoints.read_offsets(path) == OFFSETS
    checkpoints.write_offsets(path, {})
    assert path.read_text() == "0\n0\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert checkpoints.read_offsets(tmp_path / "x") == {}


@pytest.mark.parametrize("case", ["topic-dr", "cluster-broker-1", "crash-plain"])
def test_kafkas_files_are_read_and_written(case: str, tmp_path: Path) -> None:
    _, directory = disk.unpack(case, tmp_path)
    found = [path for path in directory.rglob("*-offset-checkpoint") if path.stat().st_size]
    assert found
    for path in found:
        text = path.read_text()
        offsets = checkpoints.read_offsets(path)
        assert len(offsets) == int(text.split("\n")[1])
        checkpoints.write_offsets(path, offsets)
        assert path.read_text() == text


@pytest.mark.parametrize(
    ("case", "name", "why"),
    [
        ("start-recovery-point-corrupt", checkpoints.RECOVERY_POINT, "announces 9 entries and holds 1"),
        ("start-hw-corrupt", checkpoints.REPLICATION_OFFSET, "its version is '9', not 0"),
        ("start-log-start-corrupt", checkpoints.LOG_START, "line 3 has 1 fields, not 3"),
    ],
)
def test_an_unreadable_file_says_why(case: str, name: str, why: str, tmp_path: Path) -> None:
    _, directory = disk.unpack(case, tmp_path)
    with pytest.raises(CorruptCheckpoint, match=f"{name} cannot be read: .*{why}"):
        checkpoints.read_offsets(directory / name)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"0\n", b"0\nx\n", b"0\n1\na b c\n", b"1\n0\n"])
def test_garbage_is_told(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CorruptCheckpoint):
        checkpoints.read_offsets(tmp_path / "x")
