"""Whatever a log has been through, and wherever a crash stops the cleaner: nothing committed is lost or comes back."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors
from pybroker.protocol.records.record import EndTxnMarker, Record, build_batch, end_txn_batch
from pybroker.storage.cleaner.choice import examine
from pybroker.storage.cleaner.cleaning import clean
from pybroker.storage.cleaner.job import Failed, Finished, Message
from pybroker.storage.log import Log
from pybroker.storage.log_host import InlineHost
from tests.storage.compaction import committed, job_of, last_values, records, reload, swap_in
from tests.storage.logs import NOW, config_of, open_log

SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "450",
    "segment.index.bytes": "4096",
    "index.interval.bytes": "100",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "0",
}
FILE_CALLS = ("rename", "replace", "unlink", "pwrite", "fsync", "ftruncate", "utime", "open")


class Crash(BaseException):
    """The process is gone: from here on every file operation raises it."""


@contextmanager
def crash_at(number: int) -> Iterator[list[str]]:
    """Let so many file operations of this process happen, and no more. What has happened is listed."""
    done: list[str] = []
    kept = {name: getattr(os, name) for name in FILE_CALLS}
    real_fsync, kept["fsync"] = kept["fsync"], lambda _: None  # the machine does not crash

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **how: Any) -> Any:
            if len(done) >= number:
                raise Crash
            done.append(name)
            return call(*args, **how)

        return operation

    try:
        for name, call in kept.items():
            setattr(os, name, counted(name, call))
        yield done
    finally:
        for name, call in (kept | {"fsync": real_fsync}).items():
            setattr(os, name, call)


@dataclass
class History:
    """A log, and what must be true of it."""

    log: Log
    clock: ManualClock
    appended: dict[int, Record] = field(default_factory=dict)  # all data records there ever were
    committed: dict[int, Record] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # committed offsets that were once seen to be missing
    sequences: dict[int, int] = field(default_factory=dict)  # producer → last sequence

    def append(self, pairs: list[tuple[int, bool]], codec: int, producer: int, decision: bool | None) -> None:
        """A batch of keys (and whether it is a tombstone); with a decision it is a transaction that is ended so."""
        log, now = self.log, self.clock.now_ms()
        base = log.log_end_offset
        held = [
            Record(number, now + number, b"key%d" % key, None if dead else b"v%d" % (base + number) * 5)
            for number, (key, dead) in enumerate(pairs)
        ]
        how: dict[str, Any] = {}
        if producer or decision is not None:
            how = {"producer_id": producer, "producer_epoch": 0, "base_sequence": self.sequences.get(producer, -1) + 1}
            self.sequences[producer] = how["base_sequence"] + len(held) - 1
        batch = build_batch(held, codec=codec, transactional=decision is not None, **how)
        log.append_as_leader(memoryview(batch), 0, from_client=False)
        appended = {base + record.offset: record._replace(offset=base + record.offset) for record in held}
        self.appended |= appended
        if decision is not None:
            marker = end_txn_batch(EndTxnMarker(decision, 0), producer_id=producer, producer_epoch=0, timestamp=now)
            log.append_as_leader(memoryview(marker), 0, from_client=False)
        if decision is not False:
            self.committed |= appended
        log.update_high_watermark(log.log_end_offset)

    def check(self) -> None:
        """The invariants."""
        log = self.log
        there = records(log)
        for offset, record in there.items():
            assert record._replace(sequence=-1) == self.appended[offset]  # never changed, never moved
        seen = committed(log)
        assert seen.keys() <= self.committed.keys()  # nothing aborted is shown
        assert not self.gone & seen.keys()  # nothing comes back
        self.gone |= self.committed.keys() - seen.keys()
        expected, last = last_values(self.committed), last_values(seen)
        for key, record in expected.items():
            if record.value is not None:
                assert last[key].offset == record.offset
            else:
                assert key not in last or last[key].offset == record.offset  # a tombstone, if it is still there
        for offset in self.committed.keys() - seen.keys():
            record = self.committed[offset]
            assert record.key is not None
            assert expected[record.key].offset > offset or record.value is None
        for producer, sequence in self.sequences.items():
            assert log.producers.entries[producer].last_sequence == sequence
            assert log.producers.entries[producer].txn_first_offset == -1

    def clean(self, memory: int) -> None:
        """A pass if there is anything to clean; cleaned_to stands for the checkpoint, which is written last."""
        log = self.log
        if not examine(log, self.clock.now_ms()).dirty_bytes:
            return
        ends: list[int] = []

        def report(message: Message) -> None:
            assert not isinstance(message, Failed)
            swap_in(log, message)
            if isinstance(message, Finished):
                ends.append(message.end_offset)

        clean(job_of(log, self.clock.now_ms(), memory=memory), report)
        log.cleaned_to = ends[0]

    def restart(self, *, clean_stop: bool) -> None:
        """Open the directory again, as it is."""
        log = self.log
        if clean_stop:
            log.close()
        else:
            log.release(Errors.KAFKA_STORAGE_ERROR)
        self.log = reload(
            log.directory, log.config, clean_stop=clean_stop, at=InlineHost(self.clock), now_ms=self.clock.now_ms()
        )
        self.log.cleaned_to = log.cleaned_to


def history(directory: Path) -> History:
    clock = ManualClock(NOW)
    return History(open_log(directory, config_of(SETTINGS), at=InlineHost(clock)), clock)


PAIRS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.tuples(PAIRS, st.sampled_from([0, 0, 1, 3, 4]), st.sampled_from([0, 0, 7, 8]), st.just(None)),
        ),
        st.tuples(st.just("append"), st.tuples(PAIRS, st.just(0), st.sampled_from([5, 6]), st.booleans())),
        st.tuples(st.just("roll"), st.just(())),
        st.tuples(st.just("clean"), st.sampled_from([(11 * 16,), (10_000,)])),
        st.tuples(st.just("crash"), st.tuples(st.integers(0, 120), st.sampled_from([11 * 16, 10_000]))),
        st.tuples(st.just("wait"), st.sampled_from([(500,), (1000,)])),
        st.tuples(st.just("restart"), st.tuples(st.booleans())),
    ),
    min_size=4,
    max_size=30,
)


def play(held: History, steps: list[tuple[str, Any]]) -> None:
    for step, how in steps:
        if step == "append":
            held.append(*how)
        elif step == "roll":
            held.log.roll()
        elif step == "clean":
            held.clean(*how)
        elif step == "wait":
            held.clock.advance(*how)
        elif step == "restart":
            held.restart(clean_stop=how[0])
        else:
            crash(held, *how)
        held.check()


def crash(held: History, number: int, memory: int) -> bool:
    """Clean until a crash at that file operation, and recover; whether it came to the crash."""
    try:
        with crash_at(number):
            held.clean(memory)
    except Crash:
        held.restart(clean_stop=False)
        return True
    return False


@given(STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_history(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        held = history(Path(directory))
        play(held, steps)
        for _ in range(3):  # and however it goes on
            held.log.roll()
            held.clean(10_000)
            held.check()
            held.clock.advance(1001)


@pytest.mark.parametrize(("memory", "first"), [(11 * 16, 0), (400, 1), (10_000, 2)])
def test_every_crash_point_of_one_history(memory: int, first: int, tmp_path: Path) -> None:
    """Small segments that are joined, tombstones whose horizon has passed, transactions of both kinds."""
    origin = history(tmp_path / "origin")
    for round in range(3):  # the last one stays dirty
        for number in range(3):
            origin.append([(number, round == 1), (3 - number, False)], 0, 7, None)
            origin.append([(number, False)], number % 2, 5, number % 2 == 0)
        origin.log.roll()
        if round < 2:
            origin.clean(10_000)
        origin.clock.advance(1001)
        origin.check()
    origin.log.close()
    for number in range(first, 1000, 3):
        directory = tmp_path / f"at{number}"
        shutil.copytree(tmp_path / "origin" / "t-0", directory / "t-0")
        log = reload(
            directory / "t-0",
            origin.log.config,
            clean_stop=True,
            at=InlineHost(origin.clock),
            now_ms=origin.clock.now_ms(),
        )
        log.cleaned_to = origin.log.cleaned_to
        held = History(log, origin.clock, origin.appended, origin.committed, set(origin.gone), origin.sequences)
        crashed = crash(held, number, memory)
        held.check()
        left = [path.name for path in log.directory.iterdir() if path.suffix in (".swap", ".cleaned", ".deleted")]
        assert not left
        held.clean(10_000)
        held.check()
        held.log.close()
        shutil.rmtree(directory)
        if not crashed:
            assert number > 60
            return
    raise AssertionError("the pass never came to its end")
