from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pybroker.storage.index import CorruptIndex, OffsetIndex, TimeIndex


def offset_index(path: Path, *entries: tuple[int, int], max_bytes: int = 4096) -> OffsetIndex:
    index = OffsetIndex(path / "x.index", 100, max_bytes)
    index.create()
    for offset, position in entries:
        index.reserve()
        index.append(offset, position)
    return index


def time_index(path: Path, *entries: tuple[int, int], max_bytes: int = 4096) -> TimeIndex:
    index = TimeIndex(path / "x.timeindex", 100, max_bytes)
    index.create()
    for timestamp, offset in entries:
        index.reserve()
        index.append(timestamp, offset)
    return index


def test_lookup_finds_the_last_entry_at_or_below(tmp_path: Path) -> None:
    index = offset_index(tmp_path, (101, 50), (105, 300), (110, 700))
    assert [index.lookup(offset) for offset in (99, 100, 101, 104, 105, 109, 110, 5000)] == [
        0, 0, 50, 50, 300, 300, 700, 700,
    ]  # fmt: skip
    assert [index.upper_bound(position) for position in (0, 51, 700, 701)] == [101, 105, 110, None]


def test_time_lookup_and_order(tmp_path: Path) -> None:
    index = time_index(tmp_path, (1000, 101), (1000, 103), (900, 104), (2000, 110))
    assert [index.entry(number) for number in range(index.entries)] == [(1000, 101), (2000, 110)]
    assert [index.lookup(timestamp) for timestamp in (999, 1000, 1999, 2000, 9999)] == [100, 101, 101, 110, 110]
    assert index.last() == (2000, 110)


def test_empty_indexes(tmp_path: Path) -> None:
    index, times = OffsetIndex(tmp_path / "no.index", 7, 4096), TimeIndex(tmp_path / "no.timeindex", 7, 4096)
    assert index.lookup(9) == 0
    assert index.upper_bound(0) is None
    assert times.lookup(5) == 7
    assert times.last() == (-1, 7)


def test_file_is_full_size_and_sparse_until_trimmed(tmp_path: Path) -> None:
    index, times = offset_index(tmp_path, (101, 50)), time_index(tmp_path, (1, 101))
    assert index.path.stat().st_size == 4096
    assert times.path.stat().st_size == 4092  # whole entries
    index.trim()
    times.trim()
    assert index.path.read_bytes() == bytes.fromhex("00000001 00000032")
    assert times.path.read_bytes() == bytes.fromhex("0000000000000001 00000001")
    assert OffsetIndex(index.path, 100, 4096).lookup(101) == 50


def test_a_trimmed_index_grows_again(tmp_path: Path) -> None:
    offset_index(tmp_path, (101, 50)).trim()
    index = OffsetIndex(tmp_path / "x.index", 100, 4096)
    index.reserve()
    index.append(105, 300)
    assert index.path.stat().st_size == 4096
    assert [index.entry(number) for number in range(2)] == [(101, 50), (105, 300)]


def test_fullness(tmp_path: Path) -> None:
    assert offset_index(tmp_path, (101, 1), (102, 2), max_bytes=17).is_full
    assert not time_index(tmp_path, (1, 101), max_bytes=36).is_full
    assert time_index(tmp_path, (1, 101), (2, 102), max_bytes=36).is_full  # one is left for closing the segment


def test_truncation_keeps_entries_below(tmp_path: Path) -> None:
    index = offset_index(tmp_path, (101, 50), (105, 300), (110, 700))
    index.truncate_to(105)
    assert index.entries == 1
    index.truncate_to(90)
    assert index.entries == 0


@pytest.mark.parametrize(
    "content", [b"\0" * 7, b"\xff\xff\xff\xff\0\0\0\0"], ids=["not whole entries", "below the base offset"]
)
def test_damage_is_found(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.index"
    path.write_bytes(content)
    with pytest.raises(CorruptIndex):
        OffsetIndex(path, 100, 4096).check()


def test_missing_and_descending_files_are_found(tmp_path: Path) -> None:
    with pytest.raises(CorruptIndex, match="missing"):
        OffsetIndex(tmp_path / "x.index", 100, 4096).check()
    path = tmp_path / "x.timeindex"
    path.write_bytes(bytes.fromhex("0000000000000009 00000001 0000000000000005 00000002"))
    with pytest.raises(CorruptIndex, match="timestamp"):
        TimeIndex(path, 100, 4096).check()


def test_full_disk_is_an_error_before_anything_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store into a hole of a mapped file on a full disk would kill the process."""
    index = offset_index(tmp_path, (101, 50), max_bytes=1 << 20)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    while (index.entries + 1) * 8 <= 4096:  # the page that has been paid for
        index.reserve()
        index.append(101 + index.entries, 50)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full"):
        index.reserve()
    assert index.entries == 512
