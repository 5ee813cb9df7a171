"""Which log is cleaned, and how far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pybroker.storage.cleaner.choice import examine
from pybroker.storage.cleaner.job import MOST_IN_GROUP, group
from pybroker.storage.log import Log
from tests.storage.compaction import run_pass
from tests.storage.logs import NOW, batch, fill, log_config, make_log


def three_segments(tmp_path: Path, **settings: Any) -> Log:
    """Records at 0-9, 10-19 in closed segments, 20-24 in the active one; each batch 10 s after the one before."""
    log = make_log(tmp_path, cleanup_policy="compact", **settings)
    for number in range(25):
        if number in (10, 20):
            log.roll()
        log.append_as_leader(batch(key=b"k%d" % (number % 4), timestamp=NOW + number * 10_000), 0)
    log.update_high_watermark(25)
    return log


def test_the_active_segment_and_what_is_not_replicated_stay(tmp_path: Path) -> None:
    log = three_segments(tmp_path)
    found = examine(log, NOW)
    assert (found.first_dirty, found.first_uncleanable, found.clean_bytes, found.ratio) == (0, 20, 0, 1.0)
    assert found.dirty_bytes == log.segments[0].size + log.segments[1].size
    log.high_watermark = 15
    assert examine(log, NOW).first_uncleanable == 10
    log.high_watermark = 5
    assert not examine(log, NOW).worthwhile


def test_the_dirty_share(tmp_path: Path) -> None:
    log = three_segments(tmp_path)
    run_pass(log, NOW)
    assert log.cleaned_to == 20
    assert examine(log, NOW).ratio == 0.0
    log.roll()
    found = examine(log, NOW)
    assert (found.first_dirty, found.first_uncleanable) == (20, 25)
    assert found.ratio == found.dirty_bytes / (log.size) and found.worthwhile
    log.update_config(log_config(cleanup_policy="compact", min_cleanable_dirty_ratio=0.9))
    assert not examine(log, NOW).worthwhile


def test_nothing_younger_than_the_minimum_lag(tmp_path: Path) -> None:
    log = three_segments(tmp_path, min_compaction_lag_ms=60_000)
    assert examine(log, NOW + 100_000).dirty_bytes == 0
    assert examine(log, NOW + 155_000).first_uncleanable == 10
    assert examine(log, NOW + 250_000).first_uncleanable == 20


def test_what_is_overdue_is_cleaned_whatever_the_share(tmp_path: Path) -> None:
    log = three_segments(tmp_path, max_compaction_lag_ms=60_000, min_cleanable_dirty_ratio=1)
    assert not examine(log, NOW + 60_000).worthwhile
    assert examine(log, NOW + 60_001).worthwhile


def test_the_maximum_lag_bounds_the_age_of_the_active_segment(tmp_path: Path) -> None:
    log = make_log(tmp_path, cleanup_policy="compact", max_compaction_lag_ms=1000, segment_ms=100_000)
    fill(log, 1, key=b"k")
    fill(log, 1, key=b"k", timestamp=NOW + 1001)
    assert log.bases == [0, 1]


@pytest.mark.parametrize("cleaned_to", [-1, 3, 26, 10**9])
def test_a_checkpoint_that_can_not_be_right(cleaned_to: int, tmp_path: Path) -> None:
    log = three_segments(tmp_path)
    log.maybe_increment_log_start_offset(5)
    log.cleaned_to = cleaned_to
    assert examine(log, NOW).first_dirty == 5


def test_truncation_takes_the_clean_part_back(tmp_path: Path) -> None:
    log = three_segments(tmp_path)
    run_pass(log, NOW)
    log.truncate_to(19)
    assert log.cleaned_to == 19
    log.truncate_fully_and_start_at(7)
    assert log.cleaned_to == 7


def test_groups_fit_into_a_segment(tmp_path: Path) -> None:
    log = make_log(tmp_path, cleanup_policy="compact", segment_bytes=400)
    fill(log, 350, key=b"k")
    segments = log.segments[:-1]
    sizes = [segment.size for segment in segments]
    assert len(group(segments, log.config, log.active.base_offset)) == len(segments)  # each is full
    larger = log_config(segment_bytes=max(sizes) * 3, cleanup_policy="compact")
    assert [len(held) for held in group(segments[:7], larger, segments[7].base_offset)] == [3, 3, 1]
    huge = log_config(cleanup_policy="compact")
    assert max(len(held) for held in group(segments, huge, log.active.base_offset)) == MOST_IN_GROUP
    far = group(segments[:2], huge, segments[0].base_offset + 2**31 + 1)
    assert [len(held) for held in far] == [1, 1]  # offsets are relative to the base, in 31 bits
    assert group([], huge, 0) == []
