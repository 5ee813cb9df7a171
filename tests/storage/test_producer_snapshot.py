"""The .snapshot file against Kafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from tests.support import disk


@pytest.mark.parametrize("case", ["topic-txn", "topic-idem", "whole-dir-clean", "cluster-broker-1"])
def test_kafkas_snapshots_survive_reading_and_writing(case: str, tmp_path: Path) -> None:
    _, directory = disk.unpack(case, tmp_path)
    paths = list(directory.rglob("*.snapshot"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        assert encode_snapshot(list(decode_snapshot(data))) == data


def test_no_producers_make_ten_bytes() -> None:
    data = encode_snapshot([])
    assert len(data) == 10
    assert list(decode_snapshot(data)) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\0\2" + data[2:],
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: data[:5],
    ],
)
def test_a_broken_file_is_told(spoil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, directory = disk.unpack("topic-txn", tmp_path)
    data = max(directory.rglob("*.snapshot")).read_bytes()
    with pytest.raises(CorruptSnapshot):
        list(decode_snapshot(spoil(data)))
