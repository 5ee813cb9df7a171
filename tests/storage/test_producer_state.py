"""Idempotent sequences, epochs, transactions and snapshots of a partition's producers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import read_header
from pybroker.protocol.records.record import EndTxnMarker, end_txn_batch
from pybroker.storage.producer_state import MAX_SEQUENCE, BatchEntry, ProducerStates, last_sequence_of

DAY_MS = 86_400_000
PID = 7


@pytest.fixture
def states(tmp_path: Path) -> ProducerStates:
    return ProducerStates(tmp_path, expiration_ms=DAY_MS)


def append(
    states: ProducerStates,
    offset: int,
    base_sequence: int,
    count: int = 1,
    *,
    producer: int = PID,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = 1000,
) -> BatchEntry | None:
    """Check a batch and, unless it is a duplicate, write it at `offset`."""
    last_sequence = last_sequence_of(base_sequence, count - 1)
    duplicate = states.check(producer, epoch, base_sequence, last_sequence, transactional)
    if duplicate is None:
        states.update(
            producer, epoch, base_sequence, last_sequence, offset, offset + count - 1, timestamp, transactional
        )
    return duplicate


def end(states: ProducerStates, offset: int, *, commit: bool = True, producer: int = PID, coordinator_epoch: int = 0):
    batch = end_txn_batch(
        EndTxnMarker(commit, coordinator_epoch),
        producer_id=producer,
        producer_epoch=0,
        timestamp=2000,
        base_offset=offset,
    )
    header = read_header(batch)
    states.check_control(header, batch)
    return states.replay(header, batch)


def refused(code: Errors):
    return pytest.raises(KafkaError, match=code.name)


def test_sequences_go_on_and_a_new_producer_may_start_anywhere(states: ProducerStates) -> None:
    append(states, 0, 7, 3)
    append(states, 3, 10, 2)
    assert states.entries[PID].last_sequence == 11
    for wrong in (13, 9, 0):
        with refused(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER):
            append(states, 5, wrong)


def test_the_reason_of_a_refusal_is_a_note_not_a_message(states: ProducerStates) -> None:
    append(states, 0, 0)
    with refused(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER) as caught:
        append(states, 1, 5)
    assert caught.value.message is None
    assert "expected was 1" in caught.value.__notes__[0]


def test_the_last_five_batches_are_recognised_as_duplicates(states: ProducerStates) -> None:
    for number in range(7):
        append(states, number * 10, number * 2, 2, timestamp=1000 + number)
    for number in range(2, 7):
        duplicate = append(states, 99, number * 2, 2)
        assert duplicate == (number * 2, number * 2 + 1, number * 10, number * 10 + 1, 1000 + number)
    with refused(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(states, 99, 2, 2)
    with refused(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(states, 99, 12, 1)  # part of a batch is no duplicate


def test_sequences_wrap_behind_the_largest(states: ProducerStates) -> None:
    append(states, 0, MAX_SEQUENCE - 1, 4)  # MAX-1, MAX, 0, 1
    assert states.entries[PID].last_sequence == 1
    append(states, 4, 2)
    assert append(states, 9, MAX_SEQUENCE - 1, 4) is not None
    other = ProducerStates(Path(), expiration_ms=DAY_MS)
    append(other, 0, MAX_SEQUENCE)
    append(other, 1, 0)
    assert other.entries[PID].last_sequence == 0


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one(states: ProducerStates) -> None:
    append(states, 0, 0)
    with refused(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(states, 1, 1, epoch=1)
    append(states, 1, 0, epoch=1)
    with refused(Errors.INVALID_PRODUCER_EPOCH):
        append(states, 2, 1, epoch=0)
    assert len(states.entries[PID].batches) == 1


def test_without_an_epoch_any_sequence_will_do(states: ProducerStates) -> None:
    append(states, 0, 5, epoch=-1)
    append(states, 1, 50, epoch=-1)
    append(states, 2, 3, epoch=4)


def test_a_coordinators_records_are_checked_for_the_epoch_only(states: ProducerStates) -> None:
    states.update(PID, 3, -1, -1, 0, 0, 1, True)
    assert states.check(PID, 3, -1, -1, True, from_client=False) is None
    with refused(Errors.INVALID_PRODUCER_EPOCH):
        states.check(PID, 2, -1, -1, True, from_client=False)


def test_plain_records_inside_a_transaction_are_refused(states: ProducerStates) -> None:
    append(states, 0, 0, transactional=True)
    with refused(Errors.INVALID_TXN_STATE):
        append(states, 1, 1)


def test_transactions_hold_the_unstable_offset_until_their_marker_is_replicated(states: ProducerStates) -> None:
    append(states, 0, 0, 3, producer=1, transactional=True)
    append(states, 3, 0, 2, producer=2, transactional=True)
    append(states, 5, 3, 1, producer=1, transactional=True)
    assert states.first_unstable_offset == states.first_undecided_offset == 0
    assert states.has_ongoing_transaction(1, 0)

    done = end(states, 6, producer=1, commit=False)
    assert done == (1, 0, 6, True, 3)  # everything below 3 is decided with it
    assert states.first_undecided_offset == 3
    assert states.first_unstable_offset == 0
    assert not states.on_high_watermark(6)
    assert states.on_high_watermark(7)
    assert states.first_unstable_offset == 3

    assert end(states, 7, producer=2) == (2, 3, 7, False, 8)
    assert states.on_high_watermark(8)
    assert states.first_unstable_offset is None
    assert not states.has_ongoing_transaction(2, 0)


def test_a_marker_for_nothing_decides_nothing(states: ProducerStates) -> None:
    assert end(states, 0) is None
    assert states.entries[PID].coordinator_epoch == 0
    with refused(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER):
        append(states, 1, 4)  # the epoch is known, but no batch of it
    append(states, 1, 0)


def test_a_marker_of_an_older_coordinator_is_fenced(states: ProducerStates) -> None:
    end(states, 0, coordinator_epoch=5)
    with refused(Errors.TRANSACTION_COORDINATOR_FENCED):
        end(states, 1, coordinator_epoch=4)


def test_idle_producers_are_forgotten_but_not_inside_a_transaction(states: ProducerStates) -> None:
    append(states, 0, 0, producer=1, timestamp=1000)
    append(states, 1, 0, producer=2, timestamp=1000, transactional=True)
    append(states, 2, 0, producer=3, timestamp=5000)
    assert states.remove_expired(1000 + DAY_MS) == 1
    assert sorted(states.entries) == [2, 3]


def test_a_snapshot_brings_back_the_last_batch_and_open_transactions(states: ProducerStates, tmp_path: Path) -> None:
    append(states, 0, 0, 3, producer=1)
    append(states, 3, 3, 2, producer=1)
    append(states, 5, 0, 1, producer=2, transactional=True)
    assert states.take_snapshot(6) is not None
    assert states.take_snapshot(6) is None
    loaded = ProducerStates(tmp_path, expiration_ms=DAY_MS)
    loaded.find_snapshots()
    assert loaded.load_newest(0, 6, 1500) == 6
    assert loaded.entries[1].batches[-1] == (3, 4, 3, 4, 1000)
    assert loaded.first_unstable_offset == 5
    assert append(loaded, 9, 3, 2, producer=1) is not None
    append(loaded, 6, 5, 1, producer=1)


def test_loading_leaves_out_idle_producers(states: ProducerStates) -> None:
    append(states, 0, 0, timestamp=1000)
    states.take_snapshot(1)
    assert states.load_newest(0, 1, 1000 + DAY_MS) == 1
    assert not states.entries


def test_unreadable_snapshots_and_those_outside_the_log_go(states: ProducerStates, tmp_path: Path) -> None:
    for offset in range(1, 6):
        append(states, offset - 1, offset - 1)
        states.take_snapshot(offset)
    states.snapshot_path(3).write_bytes(b"garbage")
    states.snapshot_path(4).write_bytes(states.snapshot_path(4).read_bytes()[:-1] + b"x")
    assert states.load_newest(1, 4, 2000) == 2
    assert states.snapshots == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000002.snapshot"]
    assert states.load_newest(2, 4, 2000) == 2
    assert not states.snapshots


def test_stray_snapshots_go_but_for_the_newest_behind_the_last_segment(states: ProducerStates) -> None:
    for offset in (5, 10, 13, 20, 25):
        states.take_snapshot(offset)
    states.remove_stray_snapshots([0, 10, 20])
    assert states.snapshots == [10, 20, 25]
    states.remove_stray_snapshots([0, 10, 30])
    assert states.snapshots == [10]


def test_emptying_the_log_forgets_everything(states: ProducerStates, tmp_path: Path) -> None:
    append(states, 0, 0, transactional=True)
    states.take_snapshot(1)
    states.truncate_fully_and_start_at(100)
    assert not states.entries
    assert states.first_unstable_offset is None
    assert not list(tmp_path.iterdir())
    assert states.take_snapshot(100) is None
    assert states.take_snapshot(101) is not None
