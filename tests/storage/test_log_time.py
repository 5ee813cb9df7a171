from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records.convert import set_max_timestamp
from pybroker.protocol.records.header import read_header
from pybroker.protocol.types import TopicPartition
from pybroker.storage.leader_epochs import LeaderEpochCache
from pybroker.storage.log import Log
from pybroker.storage.producer_state import ProducerStates
from pybroker.storage.segment import Segment
from tests.storage.logs import NOW, append, batch, config_of, fill, host, make_log
from tests.support import disk


def opened(directory: Path, settings: dict[str, str], start: int) -> Log:
    """A recorded partition as it is."""
    at, config = host(), config_of(settings)
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    topic, _, partition = directory.name.rpartition("-")
    return Log(
        TopicPartition(topic, int(partition)), directory, config, at,
        segments=[Segment(directory, base, config, at.cache) for base in bases],
        producers=ProducerStates(directory, expiration_ms=1), leader_epochs=LeaderEpochCache.load(directory),
        log_start_offset=start,
    )  # fmt: skip


def answer(found: tuple[int, int, int] | None) -> tuple[int, int, int]:
    return found or (-1, -1, -1)


def expected(recorded: dict[str, Any]) -> tuple[int, int, int]:
    return recorded["timestamp"], recorded["offset"], recorded["leaderEpoch"]


@pytest.mark.parametrize("case", disk.cases("topic-"))
def test_recorded_answers(case: str, tmp_path: Path) -> None:
    facts, data = disk.unpack(case, tmp_path)
    answers = facts["answers from the live broker"]
    for directory in (path for path in data.iterdir() if path.is_dir()):
        log = opened(directory, facts["topicConfig"], answers["earliest"]["offset"])
        assert log.log_end_offset == answers["latest"]["offset"]
        assert answer(log.max_timestamp_offset()) == expected(answers["max timestamp"])
        for query in answers["by timestamp"]:
            assert answer(log.offset_for_timestamp(query["query"])) == expected(query), query
        for query in answers["offsetForLeaderEpoch"]:
            assert log.end_offset_for_epoch(query["epoch"]) == (query["leaderEpoch"], query["endOffset"])


@pytest.mark.parametrize("case", disk.cases("format-"))
def test_recorded_answers_for_old_formats(case: str, tmp_path: Path) -> None:
    facts, data = disk.unpack(case, tmp_path)
    for name, answers in facts["answers from the live broker"].items():
        log = opened(data / name, {}, 0)
        for query in (*answers["by timestamp"], {"query": None, **answers["max timestamp"]}):
            ask = query["query"]
            try:
                found = log.max_timestamp_offset() if ask is None else log.offset_for_timestamp(ask)
                error = 0
            except KafkaError as refusal:
                error, found = refusal.code, None
            assert error == query["error"], (name, query)
            if not error:
                assert answer(found) == expected(query), (name, query)


def test_empty_log(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert log.max_timestamp_offset() is None
    assert log.offset_for_timestamp(0) is None


def test_equal_timestamps_first_wins(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    fill(log, 5, count=3)
    assert log.offset_for_timestamp(NOW + 2) == (NOW + 2, 2, 0)
    assert log.max_timestamp_offset() == (NOW + 2, 2, 0)


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_search_over_many_segments(tmp_path: Path, interval: int) -> None:
    log = make_log(tmp_path, segment_bytes=1000, index_interval_bytes=interval)
    for number in range(100):
        append(log, batch(2, timestamp=NOW + 10 * number))
    for number in range(0, 100, 7):
        assert log.offset_for_timestamp(NOW + 10 * number) == (NOW + 10 * number, 2 * number, 0)
        assert log.offset_for_timestamp(NOW + 10 * number - 1) == (NOW + 10 * number, 2 * number, 0)
        assert log.offset_for_timestamp(NOW + 10 * number + 1) == (NOW + 10 * number + 1, 2 * number + 1, 0)
    assert log.offset_for_timestamp(NOW + 992) is None


def test_a_batch_whose_header_is_wrong_still_has_an_answer(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    data = bytearray(batch(2))
    set_max_timestamp(data, 0, read_header(data), 0, NOW + 500)
    append(log, memoryview(data))
    assert log.max_timestamp_offset() == (NOW + 500, 1, 0)
    assert log.offset_for_timestamp(NOW + 400) is None


class TestLegacyOffsets:
    """ListOffsets 0."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        log = make_log(tmp_path, segment_bytes=2 * len(batch()))
        fill(log, 5)
        for segment, seconds in zip(log.segments, (-300, -200, -100), strict=True):
            os.utime(segment.path(".log"), (NOW / 1000 + seconds,) * 2)
        return log

    @pytest.mark.parametrize(("timestamp", "most", "found"), [
        (-1, 3, [5, 4, 2]),
        (-1, 10, [5, 4, 2, 0]),
        (-1, 0, []),
        (-2, 3, [0]),
        (NOW - 150_000, 3, [2, 0]),
        (NOW - 400_000, 3, []),
    ])  # fmt: skip
    def test_segment_ends(self, log: Log, timestamp: int, most: int, found: list[int]) -> None:
        assert log.legacy_offsets_before(timestamp, most) == found

    def test_recorded_answer(self, tmp_path: Path) -> None:
        """The batch of the far future began a segment of its own: [61, 41, 0]."""
        log = make_log(tmp_path)
        fill(log, 41)
        append(log, batch(20, timestamp=NOW + 315_360_000_000))
        assert log.legacy_offsets_before(-1, 3) == [61, 41, 0]

    def test_empty_log(self, tmp_path: Path) -> None:
        assert make_log(tmp_path).legacy_offsets_before(-1, 3) == [0]
