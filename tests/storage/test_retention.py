from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.storage.log import Log
from tests.storage.logs import append, batch, fill, make_log
from tests.storage.test_log import LaterHost

ONE = len(batch())


def log_files(log: Log) -> set[str]:
    return {path.name for path in log.directory.iterdir() if ".log" in path.name}


def test_by_size(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=2 * ONE, retention_bytes=5 * ONE)
    fill(log, 11)  # five full segments and one batch
    assert log.delete_old_segments() == 3
    assert (log.bases, log.log_start_offset, log.size) == ([6, 8, 10], 6, 5 * ONE)
    assert log.producers.snapshots == [6, 8, 10]
    assert log.delete_old_segments() == 0


def test_by_age_deletes_the_active_segment_too(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=2 * ONE, retention_ms=1000)
    fill(log, 5)
    assert isinstance(log.host.clock, ManualClock)
    log.host.clock.advance(1000)
    assert log.delete_old_segments() == 0
    log.host.clock.advance(1)
    assert log.delete_old_segments() == 3
    assert (log.bases, log.log_start_offset, log.log_end_offset, log.size) == ([5], 5, 5, 0)
    assert log.delete_old_segments() == 0  # an empty active segment stays
    append(log)
    assert log.log_end_offset == 6


def test_nothing_above_the_high_watermark_goes(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=2 * ONE, retention_bytes=0)
    fill(log, 7)
    log.update_high_watermark(5)
    assert log.delete_old_segments() == 2
    assert log.bases == [4, 6]


def test_compacted_logs_keep_everything_but_deleted_records(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=2 * ONE + 20, retention_bytes=0, retention_ms=1, cleanup_policy="compact")
    fill(log, 7, key=b"k")
    assert isinstance(log.host.clock, ManualClock)
    log.host.clock.advance(10_000)
    assert log.delete_old_segments() == 0
    log.maybe_increment_log_start_offset(4)
    assert log.delete_old_segments() == 2


def test_unlimited(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=2 * ONE, retention_ms=-1)
    fill(log, 7)
    assert isinstance(log.host.clock, ManualClock)
    log.host.clock.advance(10**12)
    assert log.delete_old_segments() == 0


class TestDeleteRecords:
    def test_log_start_offset_moves_and_segments_follow(self, tmp_path: Path) -> None:
        log = make_log(tmp_path, segment_bytes=2 * ONE)
        fill(log, 7)
        assert log.maybe_increment_log_start_offset(5)
        assert not log.maybe_increment_log_start_offset(3)
        assert (log.log_start_offset, log.bases) == (5, [0, 2, 4, 6])
        assert log.delete_old_segments() == 2
        assert (log.log_start_offset, log.bases) == (5, [4, 6])
        assert log.leader_epochs.entries == [(0, 5)]

    def test_above_the_high_watermark(self, tmp_path: Path) -> None:
        log = make_log(tmp_path)
        fill(log, 3)
        log.update_high_watermark(2)
        with pytest.raises(KafkaError) as refusal:
            log.maybe_increment_log_start_offset(3)
        assert refusal.value.code == Errors.OFFSET_OUT_OF_RANGE


def test_files_are_renamed_and_go_later(tmp_path: Path) -> None:
    later = LaterHost()
    log = make_log(tmp_path, at=later, segment_bytes=2 * ONE, retention_bytes=0)
    fill(log, 3)
    later.do_all()  # the flush behind the roll
    log.update_high_watermark(2)
    assert log.delete_old_segments() == 1
    assert log_files(log) == {f"{0:020d}.log.deleted", f"{2:020d}.log"}
    later.do_all()
    assert log_files(log) == {f"{2:020d}.log"}
