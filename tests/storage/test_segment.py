from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.header import iter_headers
from pybroker.storage.files import PageCache
from pybroker.storage.segment import Segment
from tests.storage.logs import NOW, batch, config_of, log_config
from tests.support import disk


def new_segment(path: Path, base: int = 0, **settings: object) -> Segment:
    return Segment.create(path, base, log_config(**settings), PageCache(), NOW)


def put(segment: Segment, records: memoryview) -> int:
    _, header = next(iter_headers(records))
    return segment.append(records, len(records), header.last_offset, header.max_timestamp)


def test_new_files(tmp_path: Path) -> None:
    new_segment(tmp_path, 42)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {
        f"{42:020d}.log": 0,
        f"{42:020d}.index": 10485760,
        f"{42:020d}.timeindex": 10485756,
    }


def test_index_entries_follow_the_interval(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=100)
    size = len(batch())
    assert 50 < size < 100
    for offset in range(6):
        put(segment, batch(base_offset=offset, timestamp=NOW - offset))
    entries = [segment.offset_index.entry(number) for number in range(segment.offset_index.entries)]
    assert entries == [(2, 2 * size), (4, 4 * size)]  # never the first batch
    assert segment.time_index.entries == 1  # timestamps fell
    assert segment.time_index.last() == (NOW, 0)


def test_closing_notes_the_largest_timestamp(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    put(segment, batch(3, base_offset=0))
    segment.close()
    again = Segment(tmp_path, 0, log_config(), PageCache())
    assert again.largest_timestamp == NOW + 2
    assert again.time_index.last() == (NOW + 2, 2)
    assert again.next_offset() == 3


def test_locate_walks_from_the_index(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 10, index_interval_bytes=1000)
    for base in range(10, 2010, 10):
        put(segment, batch(5, base_offset=base))  # offsets base ... base + 4: holes between batches
    for offset, base in ((10, 10), (14, 10), (15, 20), (1999, 2000), (2004, 2000)):
        found = segment.locate(offset)
        assert found is not None
        assert found.base_offset == base
    assert segment.locate(2005) is None


def test_locate_passes_large_batches(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    sizes = [put(segment, batch(1, size=30_000, base_offset=base)) for base in range(5)]
    found = segment.locate(4)
    assert found is not None
    assert found.position == sizes[-1]


@pytest.mark.parametrize(
    ("size", "offset", "timestamp", "expected"),
    [
        (100, 5, NOW, False),
        (921, 5, NOW, True),
        (100, 2**31 + 6, NOW, False),
        (100, 2**31 + 7, NOW, True),
        (100, 5, NOW + 1000, False),
        (100, 5, NOW + 1001, True),
        (100, 5, -1, False),
    ],
)
def test_roll_conditions(tmp_path: Path, size: int, offset: int, timestamp: int, expected: bool) -> None:
    segment = new_segment(tmp_path, 7, segment_bytes=1000, segment_ms=1000)
    put(segment, batch(size=10 + 80 - len(batch()), base_offset=7))
    assert segment.size == 80
    assert segment.should_roll(size, offset, timestamp, NOW + 10_000) == expected
    quick = segment.size + size > segment.max_size or timestamp > segment.roll_after or offset > segment.max_offset
    assert quick == expected


def test_rolls_by_the_clock_where_the_first_batch_has_no_time(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, segment_ms=1000)
    put(segment, batch(timestamp=-1))
    assert segment.roll_after < -1  # every batch is looked at closely
    assert not segment.should_roll(10, 5, -1, NOW + 1000)
    assert segment.should_roll(10, 5, -1, NOW + 1001)


def test_jitter_shortens_the_time(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, segment_ms=1_000_000, segment_jitter_ms=1_000_000_000)
    put(segment, batch())
    times = set()
    for _ in range(10):
        segment.configure(segment.config)
        times.add(segment.roll_after - NOW)
    assert len(times) > 1
    assert all(0 < time <= 1_000_000 for time in times)


def test_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=0, segment_index_bytes=24)
    for offset in range(4):
        put(segment, batch(base_offset=offset))
    assert segment.should_roll(10, 9, NOW, NOW)
    assert segment.roll_after < 0


def test_truncation_cuts_at_a_batch(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=100)
    for base in range(0, 10, 2):
        put(segment, batch(2, base_offset=base))
    before = segment.slice(0, segment.size)
    dropped = segment.truncate_to(5)
    assert dropped == 3 * len(batch(2))
    assert not before.intact
    assert segment.next_offset() == 4
    assert segment.path(".log").stat().st_size == segment.size
    segment.activate(segment.config, NOW)
    put(segment, batch(2, base_offset=4))
    assert segment.next_offset() == 6


def test_deleted_segment_is_still_sent(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    put(segment, batch())
    piece = segment.slice(0, segment.size)
    segment.rename(".deleted")
    assert {path.suffix for path in tmp_path.iterdir()} == {".deleted"}
    segment.delete()
    assert not list(tmp_path.iterdir())
    assert piece.read() == bytes(batch())
    piece.release()
    assert piece.file.fd == -1


def test_garbage_is_no_batch(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    put(segment, batch())
    with segment.path(".log").open("ab") as file:
        file.write(b"\0" * 100)
    segment.size += 100
    with pytest.raises(KafkaError, match="no batch"):
        segment.next_offset()


def test_recovery_cuts_at_the_first_bad_batch(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=100)
    for offset in range(10):
        put(segment, batch(base_offset=offset))
    segment.close()
    path, size = segment.path(".log"), len(batch())
    data = bytearray(path.read_bytes())
    data[7 * size + 70] ^= 1
    path.write_bytes(data)
    segment.path(".index").unlink()
    damaged = Segment(tmp_path, 0, segment.config, PageCache())
    seen: list[int] = []
    outcome = damaged.recover(lambda position, header, _: seen.append(header.base_offset))
    assert outcome == (7, 7 * size, 3 * size)
    assert seen == list(range(7))
    assert path.stat().st_size == 7 * size
    assert damaged.offset_index.entries == 3
    assert damaged.time_index.last() == (NOW, 0)


@pytest.mark.parametrize("case", disk.cases("topic-"))
def test_recovery_writes_the_indexes_that_kafka_wrote(case: str, tmp_path: Path) -> None:
    facts, data = disk.unpack(case, tmp_path)
    config = config_of(facts["topicConfig"])
    for path in sorted(data.glob("*/*.log")):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        shutil.copyfile(path, copy / path.name)
        segment = Segment(copy, int(path.stem), config, PageCache())
        assert segment.recover().truncated_bytes == 0
        for kind in (".index", ".timeindex"):
            assert segment.path(kind).read_bytes() == path.with_suffix(kind).read_bytes()


def test_preallocated_file_is_cut_when_closed(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, preallocate=True, segment_bytes=100_000)
    put(segment, batch())
    path = segment.path(".log")
    assert path.stat().st_size == 100_000
    crashed = Segment(tmp_path, 0, log_config(), PageCache())
    assert crashed.size == 100_000
    segment.close()
    assert path.read_bytes() == bytes(batch())


def test_preallocated_file_after_a_crash(tmp_path: Path) -> None:
    put(new_segment(tmp_path, preallocate=True, segment_bytes=100_000), batch())
    outcome = Segment(tmp_path, 0, log_config(), PageCache()).recover()
    assert (outcome.next_offset, outcome.valid_bytes) == (1, len(batch()))
