from __future__ import annotations

import asyncio
import builtins
import errno
import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import iter_headers
from pybroker.protocol.records.record import EndTxnMarker, end_txn_batch
from pybroker.storage.log import AppendInfo, Log
from pybroker.storage.log_host import InlineHost
from pybroker.storage.segment import Segment
from tests.storage.logs import NOW, append, batch, config_of, content, fill, host, make_log, open_log
from tests.support import disk


def everything(log: Log) -> bytes:
    return b"".join(segment.path(".log").read_bytes() for segment in log.segments)


def offsets(log: Log) -> list[tuple[int, int]]:
    """(first, last) offset of every batch on disk."""
    return [(header.base_offset, header.last_offset) for _, header in iter_headers(everything(log))]


def test_offsets_and_epoch_are_put_into_the_batches(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    first, second = append(log, batch(3), epoch=4), append(log, batch(2), epoch=5)
    assert (first.first_offset, first.last_offset, second.first_offset, second.last_offset) == (0, 2, 3, 4)
    assert offsets(log) == [(0, 2), (3, 4)]
    assert log.log_end_offset == 5
    assert [(epoch, start) for epoch, start in log.leader_epochs.entries] == [(4, 0), (5, 3)]
    assert log.end_offset_for_epoch(4) == (4, 3)


def test_one_write_and_no_other_call_per_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path)
    append(log)
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **how: Any) -> Any:
            calls.append(name)
            return real(*args, **how)

        return call

    for name in ("open", "close", "write", "pwrite", "pread", "preadv", "fsync", "stat", "ftruncate", "rename"):
        monkeypatch.setattr(os, name, counted(name))
    for _ in range(20):
        append(log, batch())
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    assert calls == ["pwrite"] * 21


def test_an_append_makes_no_garbage_cycles(tmp_path: Path) -> None:
    log, records = make_log(tmp_path), batch()
    gc.collect()
    gc.disable()
    try:
        for _ in range(1000):
            records[0:8] = bytes(8)
            log.append_as_leader(records, 0)
        assert gc.collect() == 0
    finally:
        gc.enable()


class TestProducers:
    """The recorded dialogue with idempotent producers."""

    def send(self, log: Log, producer_id: int, epoch: int, sequence: int, **how: Any) -> AppendInfo:
        records = batch(2, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **how)
        return append(log, records)

    def refused(self, log: Log, *args: Any, **how: Any) -> Errors:
        end, size = log.log_end_offset, log.size
        with pytest.raises(KafkaError) as refusal:
            self.send(log, *args, **how)
        assert (log.log_end_offset, log.size) == (end, size)
        return refusal.value.code

    @pytest.mark.parametrize("validate", [False, True])
    def test_recorded_dialogue(self, tmp_path: Path, validate: bool) -> None:
        log = make_log(tmp_path, validate_records=validate)
        assert self.send(log, 5555, 0, 0).first_offset == 0
        again = self.send(log, 5555, 0, 0)
        assert (again.first_offset, again.last_offset, again.duplicate, again.bytes) == (0, 1, True, 0)
        assert again.log_append_time == NOW + 1  # Kafka answers the batch's timestamp there
        assert self.refused(log, 5555, 0, 10) == Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert self.send(log, 5555, 0, 2).first_offset == 2
        assert self.refused(log, 5555, 0, 1) == Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert self.send(log, 5556, 0, 7).first_offset == 4
        assert self.send(log, 5555, 1, 0).first_offset == 6
        assert self.refused(log, 5555, 0, 4) == Errors.INVALID_PRODUCER_EPOCH
        assert self.refused(log, 5555, 2, 5) == Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert self.send(log, 5557, -1, 0).first_offset == 8

    def test_five_batches_are_remembered(self, tmp_path: Path) -> None:
        log = make_log(tmp_path)
        for sequence in range(0, 12, 2):
            self.send(log, 1, 0, sequence)
        assert self.send(log, 1, 0, 2).first_offset == 2
        assert self.refused(log, 1, 0, 0) == Errors.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_transactions_hold_the_last_stable_offset(self, tmp_path: Path) -> None:
        log = make_log(tmp_path)
        append(log)
        self.send(log, 1, 0, 0, transactional=True)
        self.send(log, 2, 0, 0, transactional=True)
        log.update_high_watermark(log.log_end_offset)
        assert (log.first_unstable_offset, log.last_stable_offset) == (1, 1)
        self.end(log, 1, commit=False)
        assert log.last_stable_offset == 1  # the marker is not replicated yet
        log.update_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == 3
        self.end(log, 2, commit=True)
        log.update_high_watermark(log.log_end_offset)
        assert (log.first_unstable_offset, log.last_stable_offset) == (None, log.log_end_offset)
        assert log.aborted_transactions(0, 10) == [(1, 1)]
        read = log.read(0, 1 << 20, max_offset=log.last_stable_offset)
        assert log.aborted_in(read) == [(1, 1)]
        assert self.refused(log, 1, -1, 0) == Errors.INVALID_PRODUCER_EPOCH

    def end(self, log: Log, producer_id: int, *, commit: bool) -> None:
        marker = end_txn_batch(EndTxnMarker(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=NOW)
        append(log, memoryview(marker), from_client=False)

    def test_markers_of_an_old_coordinator_are_refused(self, tmp_path: Path) -> None:
        log = make_log(tmp_path)
        for coordinator_epoch, code in ((5, None), (4, Errors.TRANSACTION_COORDINATOR_FENCED)):
            marker = memoryview(end_txn_batch(EndTxnMarker(True, coordinator_epoch), producer_id=1, producer_epoch=0,
                                              timestamp=NOW))  # fmt: skip
            if code is None:
                append(log, marker, from_client=False)
                continue
            with pytest.raises(KafkaError) as refusal:
                append(log, marker, from_client=False)
            assert refusal.value.code == code


def test_rolls_and_leaves_finished_files(tmp_path: Path) -> None:
    size = len(batch())
    log = make_log(tmp_path, segment_bytes=3 * size)
    fill(log, 7)
    assert log.bases == [0, 3, 6]
    assert [segment.size // size for segment in log.segments] == [3, 3, 1]
    assert (log.directory / f"{3:020d}.timeindex").stat().st_size == 12
    assert (log.directory / f"{6:020d}.timeindex").stat().st_size == 10485756
    assert log.producers.snapshots == [3, 6]
    assert log.recovery_point == 6  # what was rolled is flushed
    assert log.size == 7 * size


def test_rolls_by_the_records_time(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_ms=1000)
    append(log, batch(timestamp=NOW))
    append(log, batch(timestamp=NOW + 1000))
    append(log, batch(timestamp=NOW + 1001))
    assert log.bases == [0, 2]


def test_explicit_roll_of_an_empty_segment_does_nothing(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert log.roll() is log.active
    append(log)
    log.roll()
    log.roll()
    assert log.bases == [0, 1]
    assert content(log.read(0, 1000, max_offset=1)) == everything(log)


@pytest.mark.parametrize("why", [Errors.NOT_LEADER_OR_FOLLOWER, Errors.KAFKA_STORAGE_ERROR])
def test_who_comes_too_late_to_a_log_that_was_let_go_of(
    why: Errors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = make_log(tmp_path)
    fill(log, 3)
    log.release(why)
    for _ in range(2):
        with pytest.raises(KafkaError) as refusal:
            append(log)
        assert refusal.value.code == why
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_settings_change_at_once(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    fill(log, 3)
    log.update_config(config_of({"segment.bytes": str(2 * len(batch())), "max.message.bytes": "100"}))
    append(log)
    assert log.bases == [0, 3]
    with pytest.raises(KafkaError) as refusal:
        append(log, batch(size=100))
    assert refusal.value.code == Errors.MESSAGE_TOO_LARGE


class TestFollower:
    def test_copies_are_byte_for_byte(self, tmp_path: Path) -> None:
        leader, follower = make_log(tmp_path), make_log(tmp_path, name="f-0")
        for epoch in (0, 0, 3, 3, 7):
            append(leader, batch(4, producer_id=9, producer_epoch=epoch, base_sequence=0), epoch=epoch)
            append(leader, epoch=epoch)
        data = memoryview(bytearray(everything(leader)))
        info = follower.append_as_follower(data[: len(data) - 5])
        assert (info.first_offset, info.last_offset) == (0, leader.log_end_offset - 2)
        follower.append_as_follower(data[-len(batch()) :])
        assert everything(follower) == everything(leader)
        assert follower.leader_epochs.entries == leader.leader_epochs.entries
        assert follower.producers.entries[9].epoch == 7
        assert content(follower.read(2, 1, max_offset=follower.log_end_offset)) == content(
            leader.read(2, 1, max_offset=leader.log_end_offset)
        )

    def test_one_chunk_may_fill_several_segments(self, tmp_path: Path) -> None:
        leader = make_log(tmp_path)
        fill(leader, 7)
        follower = make_log(tmp_path, name="f-0", segment_bytes=3 * len(batch()))
        follower.append_as_follower(memoryview(bytearray(everything(leader))))
        assert follower.bases == [0, 3, 6]
        assert everything(follower) == everything(leader)

    def test_a_gap_begins_a_log_above_zero(self, tmp_path: Path) -> None:
        follower = make_log(tmp_path)
        follower.append_as_follower(batch(2, base_offset=10))
        assert follower.log_end_offset == 12

    @pytest.mark.parametrize("emptied_at", [10, 12, 13])
    def test_a_log_whose_start_lies_in_a_batch_begins_with_it(self, emptied_at: int, tmp_path: Path) -> None:
        """The leader's DeleteRecords stopped inside of it."""
        follower = make_log(tmp_path)
        follower.append_as_follower(batch(4))
        follower.truncate_fully_and_start_at(emptied_at)
        follower.append_as_follower(batch(4, base_offset=10))
        assert (follower.log_start_offset, follower.bases, follower.log_end_offset) == (10, [10], 14)
        follower.update_high_watermark(14)
        assert follower.maybe_increment_log_start_offset(12)
        assert (follower.log_start_offset, follower.high_watermark) == (12, 14)

    def test_an_empty_log_takes_nothing_from_before_its_start(self, tmp_path: Path) -> None:
        follower = make_log(tmp_path)
        follower.truncate_fully_and_start_at(14)
        with pytest.raises(KafkaError) as refusal:
            follower.append_as_follower(batch(4, base_offset=10))
        assert refusal.value.code == Errors.OFFSET_OUT_OF_RANGE

    @pytest.mark.parametrize(("records", "code"), [
        (batch(base_offset=0), Errors.OFFSET_OUT_OF_RANGE),
        (memoryview(bytearray(bytes(batch(base_offset=5))[:-1] + b"?")), Errors.CORRUPT_MESSAGE),
    ])  # fmt: skip
    def test_refused(self, records: memoryview, code: Errors, tmp_path: Path) -> None:
        follower = make_log(tmp_path)
        follower.append_as_follower(batch(2))
        with pytest.raises(KafkaError) as refusal:
            follower.append_as_follower(records)
        assert refusal.value.code == code
        assert follower.log_end_offset == 2

    @pytest.mark.parametrize("case", [name for name in disk.cases("topic-") if name != "topic-dr"])
    def test_replaying_what_kafka_wrote_writes_the_same_files(self, case: str, tmp_path: Path) -> None:
        facts, data = disk.unpack(case, tmp_path)
        for source in (path for path in data.iterdir() if path.is_dir()):
            log = open_log(tmp_path / "copy", config_of(facts["topicConfig"]), name=source.name)
            for path in sorted(source.glob("*.log")):
                records = memoryview(bytearray(path.read_bytes()))
                for at, header in iter_headers(records):
                    log.append_as_follower(records[at : at + header.size])
            log.close()
            theirs = {path.name: path.read_bytes() for path in source.iterdir() if path.name != "partition.metadata"}
            assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == theirs


class TestFailingDisk:
    def test_a_full_disk_refuses_and_goes_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = make_log(tmp_path)
        append(log)
        real = os.pwrite
        room = [40]

        def nearly_full(fd: int, data: memoryview, position: int) -> int:
            if not room[0]:
                raise OSError(errno.ENOSPC, "full")
            written = real(fd, data[: room[0]], position)
            room[0] = 0
            return written

        monkeypatch.setattr(os, "pwrite", nearly_full)
        with pytest.raises(KafkaError) as refusal:
            append(log)
        assert refusal.value.code == Errors.KAFKA_STORAGE_ERROR
        monkeypatch.setattr(os, "pwrite", real)
        append(log)
        assert offsets(log) == [(0, 0), (1, 1)]
        assert isinstance(log.host, InlineHost)
        assert log.host.failed == []

    def test_a_disk_that_is_full_for_the_index_refuses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = make_log(tmp_path, index_interval_bytes=0)
        append(log)
        with monkeypatch.context() as patch:

            def full(*_: Any) -> None:
                raise OSError(errno.ENOSPC, "full")

            patch.setattr(type(log.active.time_index), "reserve", full)
            with pytest.raises(KafkaError):
                append(log)
        assert (log.active.offset_index.entries, log.active.time_index.entries) == (0, 0)
        append(log, batch(2))
        assert offsets(log) == [(0, 0), (1, 2)]
        assert (log.active.offset_index.entries, log.active.time_index.entries) == (1, 1)

    def test_a_broken_disk_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = make_log(tmp_path)

        def broken(*_: Any) -> int:
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(os, "pwrite", broken)
        with pytest.raises(KafkaError) as refusal:
            append(log)
        assert refusal.value.code == Errors.KAFKA_STORAGE_ERROR
        assert isinstance(log.host, InlineHost)
        assert [error.errno for error in log.host.failed] == [errno.EIO]

    def test_an_interrupted_write_is_finished(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = make_log(tmp_path)
        real = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, data[:10], position))
        append(log)
        assert offsets(log) == [(0, 0)]

    def test_a_failed_roll_leaves_the_old_segment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = make_log(tmp_path, segment_bytes=len(batch()))
        append(log)

        def full(*_: Any) -> Segment:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(Segment, "create", full)
            with pytest.raises(KafkaError):
                append(log)
        append(log)
        assert log.bases == [0, 1]
        assert offsets(log) == [(0, 0), (1, 1)]


class TestFlush:
    def test_flush_moves_the_recovery_point(self, tmp_path: Path) -> None:
        log = make_log(tmp_path)
        fill(log, 3)
        assert (log.recovery_point, log.unflushed) == (0, 3)
        log.flush(2)
        assert (log.recovery_point, log.unflushed) == (2, 1)
        log.flush()
        assert log.unflushed == 0

    def test_flush_messages_makes_appends_durable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = make_log(tmp_path, flush_messages=3)
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", synced.append)
        points = []
        for _ in range(7):
            append(log)
            points.append(log.recovery_point)
        assert points == [0, 0, 3, 3, 3, 6, 6]
        assert synced

    async def test_the_answer_waits_for_the_disk(self, tmp_path: Path) -> None:
        threads = LaterHost()
        log = make_log(tmp_path, at=threads, flush_messages=1)
        answers: list[Awaitable[AppendInfo]] = []
        for _ in range(3):
            info = log.append_as_leader(batch(), 0)
            assert not isinstance(info, AppendInfo)
            answers.append(info)
        assert log.log_end_offset == 3
        waiting = asyncio.gather(*answers)
        await asyncio.sleep(0)
        assert not waiting.done()
        threads.do_all()
        assert [info.first_offset for info in await waiting] == [0, 1, 2]
        assert log.recovery_point == 3

    async def test_a_failed_flush_fails_the_append(self, tmp_path: Path) -> None:
        threads = LaterHost()
        log = make_log(tmp_path, at=threads, flush_messages=1)
        info = log.append_as_leader(batch(), 0)
        assert not isinstance(info, AppendInfo)
        threads.do_all(OSError(errno.EIO, "broken"))
        with pytest.raises(KafkaError) as failure:
            await info
        assert failure.value.code == Errors.KAFKA_STORAGE_ERROR
        assert threads.failed

    async def test_a_flush_of_a_log_that_is_deleted_meanwhile(self, tmp_path: Path) -> None:
        threads = LaterHost()
        log = make_log(tmp_path, at=threads, flush_messages=1)
        info = log.append_as_leader(batch(), 0)
        assert not isinstance(info, AppendInfo)
        log.release(Errors.NOT_LEADER_OR_FOLLOWER)
        threads.do_all(FileNotFoundError(errno.ENOENT, "the directory has another name now"))
        with pytest.raises(KafkaError) as failure:
            await info
        assert failure.value.code == Errors.NOT_LEADER_OR_FOLLOWER
        assert not threads.failed

    def test_a_flush_overtaken_by_truncation_says_nothing(self, tmp_path: Path) -> None:
        threads = LaterHost()
        log = make_log(tmp_path, at=threads)
        fill(log, 5)
        log.flush_later()
        log.truncate_to(2)
        fill(log, 3)
        threads.do_all()
        assert log.recovery_point == 0


    def test_one_flush_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Many segments rolled while the disk is busy: the next flush does them all."""
        threads = LaterHost()
        log = make_log(tmp_path, at=threads, segment_bytes=200)
        fill(log, 1)
        done: list[OSError | None] = []
        fill(log, 40)
        log.flush_later(done.append)
        assert len(log.segments) > 10
        assert len(threads.work) == 1
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", synced.append)
        threads.do_next()
        assert (log.recovery_point, done) == (log.bases[1], [])
        threads.do_all()
        assert (log.recovery_point, done) == (41, [None])
        assert len(synced) < 5 * len(log.segments)
        assert not threads.work


class LaterHost(InlineHost):
    """A host whose threads work when told."""

    def __init__(self) -> None:
        super().__init__(host().clock)
        self.work: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []

    def run(self, action: Callable[[], None], done: Callable[[OSError | None], None], delay_ms: int = 0) -> None:
        self.work.append((action, done))

    def do_all(self, error: OSError | None = None) -> None:
        while self.work:
            self.do_next(error)

    def do_next(self, error: OSError | None = None) -> None:
        action, done = self.work.pop(0)
        action()
        done(error)


def test_closed_log_opens_again(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=3 * len(batch()))
    fill(log, 7)
    log.close()
    segments = [Segment(log.directory, base, log.config, log.host.cache) for base in (0, 3, 6)]
    log.producers.find_snapshots()
    again = Log(
        log.topic_partition, log.directory, log.config, log.host,
        segments=segments, producers=log.producers, leader_epochs=log.leader_epochs, high_watermark=7,
    )  # fmt: skip
    assert (again.log_end_offset, again.high_watermark, again.log_start_offset) == (7, 7, 0)
    append(again)
    assert offsets(again)[-1] == (7, 7)


def test_a_moved_directory_is_followed(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=2 * len(batch()))
    fill(log, 3)
    new = tmp_path / "t-0.0123-delete"
    log.directory.rename(new)
    log.moved(new)
    fill(log, 3)
    assert len(offsets(log)) == 6
    assert not (tmp_path / "t-0").exists()


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_roll_that_finds_the_disk_full_can_be_repeated(
    preallocate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th file operation of a roll fails, for every n: all is as before, and rolls when there is room again."""
    for failing in range(50):
        log = make_log(tmp_path, name=f"t-{failing}", preallocate=preallocate, segment_bytes=1 << 20)
        fill(log, 5)
        append(log, batch(timestamp=NOW + 1, producer_id=1, producer_epoch=0, base_sequence=0))
        before, size = sorted(path.name for path in log.directory.iterdir()), log.active.size
        with monkeypatch.context() as full:
            for owner, name in ROOM_TAKERS:
                full.setattr(owner, name, _failing(getattr(owner, name), failing))
            CALLS.clear()
            try:
                log.roll()
                break
            except KafkaError as error:
                assert error.code is Errors.KAFKA_STORAGE_ERROR
        assert (log.active.base_offset, log.active.size) == (0, size)
        snapshot = f"{log.log_end_offset:020d}.snapshot"
        assert [name for name in sorted(path.name for path in log.directory.iterdir()) if name != snapshot] == before
        append(log)
        assert log.roll().base_offset == log.log_end_offset
        append(log)
        assert log.log_end_offset == 8
        assert log.offset_for_timestamp(NOW + 1) is not None
    assert 8 < failing < 49


CALLS: list[str] = []
#: What takes disk space: creating files, growing them, writing.
ROOM_TAKERS = [(os, "open"), (os, "ftruncate"), (os, "pwrite"), (os, "posix_fallocate"), (builtins, "open")]


def _failing(real: Callable[..., Any], at: int) -> Callable[..., Any]:
    def call(*args: Any, **how: Any) -> Any:
        CALLS.append(str(args))
        if len(CALLS) - 1 == at:
            raise FULL
        return real(*args, **how)

    return call
