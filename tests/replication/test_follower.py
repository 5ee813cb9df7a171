"""The follower of one partition, by scripts: what its log holds, what the leader answers, what becomes of it.

A log is written as "epoch*count ...": "0*4 2*3" is four records of epoch 0 and three of epoch 2.
"""

from __future__ import annotations

from itertools import product

import pytest

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import EpochEndOffset, PartitionData
from pybroker.replication.follower import TRANSITIONS, Event, Follower, State
from pybroker.storage.log_append import AppendInfo
from tests.replication.cluster_model import RECORD, ModelLog, SlowLog


def log(text: str, mark: int = 0) -> ModelLog:
    made = ModelLog()
    for run in text.split():
        epoch, count = map(int, run.split("*"))
        made.start_leader_epoch(epoch)
        for _ in range(count):
            made.append_as_leader(made.log_end_offset, epoch)
    made.high_watermark = mark
    return made


def told(made: ModelLog) -> str:
    runs: list[list[int]] = []
    for epoch, _ in made.records:
        if runs and runs[-1][0] == epoch:
            runs[-1][1] += 1
        else:
            runs.append([epoch, 1])
    return " ".join(f"{epoch}*{count}" for epoch, count in runs)


def answer(leader: ModelLog, follower: Follower) -> PartitionData:
    """What a leader with this log answers to the follower's next fetch (12 and later)."""
    offset, epoch = follower.log.log_end_offset, follower.last_fetched_epoch
    data = PartitionData(
        partition_index=0, high_watermark=leader.high_watermark, log_start_offset=leader.log_start_offset
    )
    if epoch >= 0:
        found, end = leader.end_offset_for_epoch(epoch)
        if found < epoch or end < offset:
            data.diverging_epoch = EpochEndOffset(epoch=found, end_offset=end)
            return data
    try:
        data.records = leader.read(offset, 1 << 20, max_offset=leader.log_end_offset).records
    except KafkaError as error:
        data.error_code = error.code
    return data


# follower's log, leader's log → follower's after as many fetches as it takes
DIVERGENCES = [
    ("", "0*3", "0*3"),
    ("0*3", "0*5", "0*5"),
    ("0*5", "0*3 1*2", "0*3 1*2"),
    ("0*3 1*4", "0*3 2*2", "0*3 2*2"),
    ("0*3 1*4", "0*5 2*2", "0*5 2*2"),
    ("0*3 1*2 3*2", "0*3 1*1 2*5 4*1", "0*3 1*1 2*5 4*1"),
    ("0*2 2*9", "0*3 1*2 3*1", "0*3 1*2 3*1"),
    ("1*4", "0*2 2*1", "0*2 2*1"),
]


@pytest.mark.parametrize(("mine", "leaders", "becomes"), DIVERGENCES)
def test_it_cuts_back_to_where_the_epochs_part(mine: str, leaders: str, becomes: str) -> None:
    follower, leader = Follower(log(mine), 9), log(leaders)
    for _ in range(6):
        assert follower.prepare(0) is State.FETCHING
        follower.on_fetch(answer(leader, follower), follower.log.log_end_offset, 0)
    assert told(follower.log) == becomes  # type: ignore[arg-type]


@pytest.mark.parametrize(("mine", "leaders", "becomes"), DIVERGENCES)
def test_older_leaders_are_asked_for_the_ends_of_epochs(mine: str, leaders: str, becomes: str) -> None:
    follower, leader = Follower(log(mine), 9, tells_epochs=False), log(leaders)
    for _ in range(6):
        if follower.prepare(0) is State.TRUNCATING:
            follower.on_epoch_end(0, *leader.end_offset_for_epoch(follower.last_fetched_epoch), now_ms=0)
    assert follower.state is State.FETCHING
    offset = follower.log.log_end_offset
    read = leader.read(offset, 1 << 20, max_offset=leader.log_end_offset).records
    follower.on_fetch(PartitionData(partition_index=0, records=read), offset, 0)
    assert told(follower.log) == becomes  # type: ignore[arg-type]


def test_a_log_without_epochs_is_cut_to_its_watermark() -> None:
    mine = log("0*5", mark=2)
    mine.epochs.clear()
    follower = Follower(mine, 9)
    assert follower.prepare(0) is State.FETCHING
    assert mine.log_end_offset == 2


def test_the_watermark_is_the_leaders_but_never_beyond_the_own_end_nor_back() -> None:
    follower = Follower(log("0*3"), 0)
    follower.prepare(0)
    for leaders, own in ((2, 2), (9, 3), (1, 3)):
        follower.on_fetch(PartitionData(partition_index=0, high_watermark=leaders), 3, 0)
        assert follower.log.high_watermark == own


def test_the_log_start_follows_as_far_as_it_is_committed() -> None:
    follower = Follower(log("0*5"), 0)
    follower.prepare(0)
    follower.on_fetch(PartitionData(partition_index=0, high_watermark=3, log_start_offset=4), 5, 0)
    assert follower.log.log_start_offset == 3


@pytest.mark.parametrize(
    ("mine", "start", "end", "first", "last"),
    [
        ("0*5", 8, 12, 8, 8),  # the leader has deleted what we lack: begin anew
        ("0*5", 0, 3, 0, 3),  # elected uncleanly, it has less than we
        ("0*5", 2, 9, 0, 5),  # it moved meanwhile: nothing to do
    ],
)
def test_out_of_range(mine: str, start: int, end: int, first: int, last: int) -> None:
    follower = Follower(log(mine), 0)
    follower.prepare(0)
    follower.on_fetch(PartitionData(partition_index=0, error_code=Errors.OFFSET_OUT_OF_RANGE), 5, 0)
    assert follower.state is State.LOCATING
    follower.on_located(start, end, 0)
    assert follower.prepare(0) is State.FETCHING
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (first, last)


def test_pauses_grow_up_to_the_setting_and_end_with_success() -> None:
    follower = Follower(log(""), 0, backoff_ms=300)
    now, pauses = 0, []
    for _ in range(5):
        assert follower.prepare(now) is State.FETCHING
        refusal = PartitionData(partition_index=0, error_code=Errors.NOT_LEADER_OR_FOLLOWER)
        follower.on_fetch(refusal, 0, now)
        assert follower.prepare(follower.retry_ms - 1) is State.BACKING_OFF
        pauses.append(follower.retry_ms - now)
        now = follower.retry_ms
    assert pauses == [50, 100, 200, 300, 300]
    follower.prepare(now)
    follower.on_fetch(PartitionData(partition_index=0), 0, now)
    assert follower.error == Errors.NONE


def test_an_answer_to_an_older_question_changes_nothing() -> None:
    follower = Follower(log("0*3"), 0)
    follower.prepare(0)
    late = PartitionData(partition_index=0, high_watermark=2, records=RECORD.pack(1, 0, 7))
    assert follower.on_fetch(late, 1, 0) == 0
    assert (follower.log.log_end_offset, follower.log.high_watermark) == (3, 0)


class _Full(ModelLog):
    """It has no room at the first attempt."""

    full = True

    def append_as_follower(self, records: memoryview) -> AppendInfo:
        if self.full:
            self.full = False
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR)
        return super().append_as_follower(records)


def test_a_full_disk_is_tried_again() -> None:
    follower = Follower(_Full(), 0)
    follower.prepare(0)
    data = PartitionData(partition_index=0, records=RECORD.pack(0, 0, 7))
    assert follower.on_fetch(data, 0, 0) == 0
    assert (follower.prepare(0), follower.error) == (State.BACKING_OFF, Errors.KAFKA_STORAGE_ERROR)
    assert follower.prepare(1 << 40) is State.FETCHING
    assert follower.on_fetch(data, 0, 0) == RECORD.size
    assert follower.log.log_end_offset == 1


async def test_a_slow_disk_is_waited_for() -> None:
    mine = SlowLog()
    follower = Follower(mine, 0)
    follower.prepare(0)
    data = PartitionData(partition_index=0, high_watermark=1, records=RECORD.pack(0, 0, 7))
    appending = follower.on_fetch(data, 0, 0)
    assert not isinstance(appending, int)
    assert follower.prepare(1 << 40) is State.WRITING
    assert follower.on_fetch(data, 0, 0) == 0  # an answer that came twice
    assert len(mine.begun) == 1
    mine.finish()
    assert follower.on_written(data, await appending, 0) == RECORD.size
    assert follower.prepare(0) is State.FETCHING
    assert (mine.log_end_offset, mine.high_watermark) == (1, 1)


def test_a_leader_that_repeats_itself_is_not_asked_without_rest() -> None:
    follower = Follower(log("0*3"), 0)
    follower.prepare(0)
    data = PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=0, end_offset=3))
    follower.on_fetch(data, 3, 0)
    assert follower.state is State.BACKING_OFF


def test_the_table_is_closed_and_no_state_is_final() -> None:
    assert all(key in set(product(State, Event)) for key in TRANSITIONS)
    leaves = {state for state, _ in TRANSITIONS}
    assert set(State) == leaves
