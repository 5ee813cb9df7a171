"""However many segments there are, only so many have files open; what is being sent stays open."""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

import pytest

from pybroker.storage import files
from pybroker.storage.files import FileSlice, OpenFiles, PageCache
from pybroker.storage.segment import Segment
from tests.storage.logs import NOW, batch, host, log_config, make_log

SEGMENTS = 10_000
MOST = 50
OF_ONE = 3  # descriptors of a segment whose indexes are mapped, at most


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def many_segments(directory: Path, cache: PageCache) -> list[Segment]:
    """Ten thousand finished segments of one record each, with indexes that are large enough to be mapped."""
    index, time_index = directory / "index", directory / "timeindex"
    index.write_bytes(b"".join(struct.pack(">ii", 0, 0) for _ in range(1000)))
    time_index.write_bytes(b"".join(struct.pack(">qi", NOW + number, 0) for number in range(1000)))
    segments, config = [], log_config()
    for base in range(SEGMENTS):
        (directory / f"{base:020d}.log").write_bytes(batch(base_offset=base))
        os.link(index, directory / f"{base:020d}.index")
        os.link(time_index, directory / f"{base:020d}.timeindex")
        segments.append(Segment(directory, base, config, cache))
    return segments


def test_ten_thousand_segments_that_are_read(tmp_path: Path) -> None:
    cache = PageCache(open_files=OpenFiles(MOST))
    segments = many_segments(tmp_path, cache)
    before = most = open_descriptors()
    held = [(segment, segment.slice(0, segment.size)) for segment in segments[:10]]
    for segment in segments:
        segment.check_indexes()
        segment.read_timestamps()
        found = segment.locate(segment.base_offset)
        assert found is not None
        assert found.base_offset == segment.base_offset
        if segment.base_offset % 100 == 0:
            most = max(most, open_descriptors())
    assert MOST < most - before <= MOST * OF_ONE
    assert len(cache.open_files) == MOST
    for segment, piece in held:
        assert piece.read() == bytes(batch(base_offset=segment.base_offset))
        assert segment.slice(0, 1).file is piece.file  # it was passed over, and is still the segment's own
        piece.file.release()
        piece.release()
    for segment in segments[-2 * MOST :]:
        segment.check_indexes()
    assert not any(piece.file.fd >= 0 for _, piece in held)
    for segment in segments:
        segment.release()
    assert open_descriptors() == before
    assert not len(cache.open_files)


def test_the_least_lately_used_goes(tmp_path: Path) -> None:
    open_files = OpenFiles(3)
    log = make_log(tmp_path, at=host(PageCache(open_files=open_files)))
    for _ in range(6):
        log.append_as_leader(batch(), 0)
        log.roll()
    for number in (0, 1, 2, 0, 3):
        read(log.segments[number])
    assert [number for number, segment in enumerate(log.segments) if segment in open_files] == [0, 2, 3]


def read(segment: Segment) -> None:
    assert segment.file.read(0, segment.size, blocking=True)


def test_a_slice_of_a_truncated_segment_is_spoilt(tmp_path: Path) -> None:
    """It would not be, if its segment had opened the file once more meanwhile."""
    log = make_log(tmp_path, at=host(PageCache(open_files=OpenFiles(2))))
    for _ in range(8):
        log.append_as_leader(batch(2), 0)
        log.append_as_leader(batch(2), 0)
        log.roll()
    piece = log.segments[1].slice(0, log.segments[1].size)
    for segment in log.segments[2:-1] * 3:
        read(segment)
    log.truncate_to(6)
    assert log.log_end_offset == 6
    assert not piece.intact
    piece.release()


def test_the_active_segment_stays_open(tmp_path: Path) -> None:
    log = make_log(tmp_path, at=host(PageCache(open_files=OpenFiles(1))))
    for _ in range(3):
        log.append_as_leader(batch(), 0)
        log.roll()
    log.append_as_leader(batch(), 0)
    fd = log.active.fd
    for segment in log.segments[:-1]:
        read(segment)
    log.append_as_leader(batch(), 0)
    assert log.active.fd == fd
    assert isinstance(log.active.slice(0, log.active.size), FileSlice)
    assert log.active.next_offset() == 5


@pytest.mark.parametrize(
    ("limit", "most"), [(256, 21), (1024, 85), (20_000, 1666), (1 << 20, 4096), (resource.RLIM_INFINITY, 4096)]
)
def test_the_bound_follows_the_limit_of_open_files(limit: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FILES_OF_READER", 3)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert OpenFiles().most == most
