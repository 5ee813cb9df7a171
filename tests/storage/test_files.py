from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pybroker.storage.files import FileSlice, OpenFile, PageCache, WouldBlock

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "data"
    file.write_bytes(bytes(range(256)) * 8192)  # 2 MiB
    return file


def test_file_closes_with_its_last_holder(path: Path) -> None:
    file = OpenFile(path, PageCache())
    piece = FileSlice(file, 256, 10)
    file.release()
    path.unlink()
    assert piece.read() == bytes(range(10))
    piece.release()
    assert file.fd == -1


def test_slice_reads_in_pieces(path: Path) -> None:
    piece = FileSlice(OpenFile(path, PageCache()), 10, MIB + 5)
    assert [len(part) for part in piece.pieces()] == [MIB, 5]
    assert len(piece) == MIB + 5
    assert piece.read() == path.read_bytes()[10 : MIB + 15]


def test_truncation_spoils_the_slices_behind_it(path: Path) -> None:
    file = OpenFile(path, PageCache())
    before, across = FileSlice(file, 0, 100), FileSlice(file, 50, 100)
    file.limit = 100
    assert before.intact
    assert not across.intact


def test_uncached_bytes_would_block(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_cached(*_: Any) -> int:
        raise BlockingIOError(errno.EAGAIN, "not cached")

    file = OpenFile(path, PageCache(nowait=True))
    monkeypatch.setattr(os, "preadv", nothing_cached)
    if not file.cache.nowait:
        pytest.skip("no RWF_NOWAIT on this system")
    with pytest.raises(WouldBlock):
        file.read(0, 10)
    assert not file.is_cached(0, 10)
    assert file.read(0, 10, blocking=True) == bytes(range(10))


def test_partly_cached_bytes_would_block(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OpenFile(path, PageCache(nowait=True))
    if not file.cache.nowait:
        pytest.skip("no RWF_NOWAIT on this system")
    monkeypatch.setattr(os, "preadv", lambda *_: 7)
    with pytest.raises(WouldBlock):
        file.read(0, 10)


def test_large_ranges_are_probed_at_several_places(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OpenFile(path, PageCache(nowait=True))
    if not file.cache.nowait:
        pytest.skip("no RWF_NOWAIT on this system")
    probed: list[int] = []

    def first_mebibyte(_: int, buffers: Sequence[bytearray], position: int, flags: int) -> int:
        probed.append(position)
        if position >= MIB:
            raise BlockingIOError(errno.EAGAIN, "not cached")
        return len(buffers[0])

    monkeypatch.setattr(os, "preadv", first_mebibyte)
    assert file.is_cached(0, MIB)
    assert probed[0] == 0
    assert probed[-1] == MIB - 1
    assert 4 <= len(probed) <= 6
    assert not file.is_cached(0, 2 * MIB)


def test_pages_that_the_kernel_dropped(path: Path) -> None:
    """The real thing, where system and file system do as they are told."""
    file = OpenFile(path, PageCache(nowait=True))
    if not file.cache.nowait or not hasattr(os, "posix_fadvise"):
        pytest.skip("no RWF_NOWAIT on this system")
    os.fsync(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if file.is_cached(MIB, 100):
        pytest.skip("pages stay where they are")
    if not file.cache.nowait:
        pytest.skip("the file system refuses RWF_NOWAIT")
    with pytest.raises(WouldBlock) as missing:
        file.read(0, MIB + 7)
    missing.value.pull_in()
    assert file.read(0, MIB + 7) == path.read_bytes()[: MIB + 7]


def test_a_refused_flag_turns_to_the_fallback(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, "not here")

    cache = PageCache(nowait=True)
    if not cache.nowait:
        pytest.skip("no RWF_NOWAIT on this system")
    file = OpenFile(path, cache)
    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(WouldBlock):
        file.read(0, 10)
    assert not cache.nowait
    file.read(0, 10, blocking=True)
    assert file.read(0, 10) == bytes(range(10))


class TestFallback:
    """Without RWF_NOWAIT, what was read or written lately counts as cached."""

    def test_what_was_read_is_cached(self, path: Path) -> None:
        file = OpenFile(path, PageCache(nowait=False))
        with pytest.raises(WouldBlock):
            file.read(0, 10)
        file.read(5, 10, blocking=True)
        assert file.read(0, MIB) == path.read_bytes()[:MIB]
        assert file.is_cached(0, MIB)
        assert not file.is_cached(MIB - 1, 2)

    def test_what_was_appended_is_cached(self, path: Path) -> None:
        cache = PageCache(nowait=False)
        file = OpenFile(path, cache)
        cache.touched(file.number, MIB, 100)
        assert file.is_cached(MIB, 100)
        assert not file.is_cached(MIB - 1, 100)

    def test_memory_is_bounded_and_forgets_the_oldest(self, path: Path) -> None:
        cache = PageCache(nowait=False, recent_bytes=2 * MIB)
        file = OpenFile(path, cache)
        for chunk in (0, 1, 0, 2):
            cache.touched(file.number, chunk * MIB, 1)
        assert [file.is_cached(chunk * MIB, 1) for chunk in range(3)] == [True, False, True]

    def test_files_are_told_apart(self, path: Path) -> None:
        cache = PageCache(nowait=False)
        first, second = OpenFile(path, cache), OpenFile(path, cache)
        cache.touched(first.number, 0, 1)
        assert first.is_cached(0, 1)
        assert not second.is_cached(0, 1)
