"""The n-th file operation of something that changes a log fails, for every n: the disk is full at that moment.

What was asked for can be repeated and then ends as if nothing had happened; and a crash right after the failure leaves
a log that is sound, with a beginning of what it held.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import iter_headers
from pybroker.storage.log import Log
from pybroker.storage.tools.verify import Verification
from tests.storage.compaction import reload
from tests.storage.faults import Faults
from tests.storage.logs import NOW, append, batch, make_log
from tests.storage.test_log_mover import everything


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("tells files by /proc")
    return Faults(monkeypatch, tmp_path)


def filled(directory: Path) -> Log:
    """Segments [0, 6), [6, 12), [12, 18), [18, 22), epochs 0 to 3, two producers."""
    log = make_log(directory, segment_bytes=6 * len(batch()), index_interval_bytes=1, segment_index_bytes=4096)
    for number in range(22):
        how = {"producer_id": number % 2, "producer_epoch": 0, "base_sequence": number // 2}
        append(log, batch(timestamp=NOW + number, **how), epoch=number // 6)
    log.update_high_watermark(20)
    return log


def told(log: Log) -> tuple[Any, ...]:
    """All that matters of a log."""
    producers = [
        (each.producer_id, each.epoch, [(batch.base_sequence, batch.first_offset) for batch in each.batches])
        for _, each in sorted(log.producers.entries.items())
    ]
    return (
        log.bases, log.log_start_offset, log.log_end_offset, log.high_watermark, log.leader_epochs.entries,
        log.latest_epoch, everything(log), producers, [each.offset_index.content() for each in log.segments],
    )  # fmt: skip


def files(log: Log) -> list[str]:
    """Of its segments; a snapshot too many does no harm, nor does what was to become a checkpoint."""
    kinds = (".log", ".index", ".timeindex", ".txnindex")
    return sorted(path.name for path in log.directory.iterdir() if path.name.endswith(kinds))


CHANGES: dict[str, Callable[[Log], object]] = {
    "in the active segment": lambda log: log.truncate_to(20),
    "at a segment's beginning": lambda log: log.truncate_to(12),
    "in an earlier segment": lambda log: log.truncate_to(8),
    "to nothing": lambda log: log.truncate_to(0),
    "begun anew above": lambda log: log.truncate_fully_and_start_at(100),
    "begun anew at its last segment": lambda log: log.truncate_fully_and_start_at(18),
    "begun anew at its beginning": lambda log: log.truncate_fully_and_start_at(0),
    "retention": lambda log: (log.maybe_increment_log_start_offset(13), log.delete_old_segments()),
    "roll": lambda log: log.roll(),
    "a new leader epoch": lambda log: log.start_leader_epoch(9),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_can_be_repeated(name: str, tmp_path: Path, faults: Faults) -> None:
    change = CHANGES[name]
    reference = filled(tmp_path / "reference")
    change(reference)
    for number in range(200):
        log = filled(tmp_path / str(number))
        before = everything(log)
        failure = None
        with faults.at(number):
            try:
                change(log)
            except KafkaError as error:
                failure = error
        if len(faults.seen) <= number:
            break
        where = faults.seen[number]
        if failure is not None:
            assert failure.code is Errors.KAFKA_STORAGE_ERROR
        shutil.copytree(log.directory, tmp_path / f"crashed-{number}" / "t-0")
        _check_crashed(tmp_path / f"crashed-{number}" / "t-0", log, before, where)
        if failure is not None:
            change(log)
        assert told(log) == told(reference), where
        assert files(log) == files(reference), where
        assert append(log, batch(), epoch=9).first_offset == reference.log_end_offset
        log.close()
        assert _errors(log.directory) == [], where
    assert number > 0
    assert not failure


def _check_crashed(directory: Path, log: Log, before: bytes, where: str) -> None:
    """Recovery finds a beginning of what there was, or what was left of it, and it can be appended to."""
    again = reload(directory, log.config, clean_stop=False, now_ms=NOW)
    data = everything(again)
    assert before.startswith(data) or before.endswith(data), where
    ends = [header.last_offset + 1 for _, header in iter_headers(data)]
    assert again.log_end_offset >= (ends[-1] if ends else 0), where
    assert append(again, batch(), epoch=9).first_offset == again.log_end_offset - 1
    again.close()
    assert _errors(directory) == [], where


def _errors(directory: Path) -> list[Any]:
    return [each for each in Verification([directory.parent], deep=True).run() if each.severity == "error"]
