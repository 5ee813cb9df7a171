"""A partition over a real log: leadership, appends, the high watermark and who is told of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from pybroker.replication.partition import Partition
from pybroker.storage.log import AppendInfo
from tests.storage.logs import batch, make_log

LOCAL = 1


def state(
    leader: int = LOCAL, epoch: int = 0, replicas: Iterable[int] = (1,), isr: Iterable[int] | None = None
) -> LeaderAndIsrPartitionState:
    members = list(replicas)
    return LeaderAndIsrPartitionState(
        partition_index=0, leader=leader, leader_epoch=epoch, replicas=members, isr=list(isr or members)
    )


def partition(directory: Path, **settings: Any) -> Partition:
    return Partition("t", 0, bytes(16), make_log(directory, **settings), LOCAL)


def append(to: Partition, count: int = 1, acks: int = 1) -> AppendInfo:
    info = to.append(batch(count), acks, 9)
    assert isinstance(info, AppendInfo)
    return info


class Ear:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.heard = 0

    def partition_moved(self, partition: Partition) -> None:
        self.heard += 1


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> Errors:
    return error.value.code


def test_nobody_leads_before_the_controller_says_so(tmp_path: Path) -> None:
    with pytest.raises(KafkaError) as error:
        append(partition(tmp_path))
    assert code_of(error) == Errors.NOT_LEADER_OR_FOLLOWER


def test_a_leader_alone_commits_what_it_appends(tmp_path: Path) -> None:
    alone = partition(tmp_path)
    assert alone.make_leader(state(), 0)
    info = append(alone, 3, acks=-1)
    assert (info.first_offset, info.last_offset) == (0, 2)
    assert alone.log.high_watermark == 3
    assert alone.is_committed(3)


def test_followers_hold_the_high_watermark(tmp_path: Path) -> None:
    led = partition(tmp_path)
    led.make_leader(state(replicas=(1, 2, 3)), 0)
    append(led, 5)
    assert led.log.high_watermark == 0
    led.record_follower_fetch(2, 5, 0, 1)
    assert not led.is_committed(1)
    led.record_follower_fetch(3, 4, 0, 1)
    assert led.log.high_watermark == 4
    assert led.is_committed(4) and not led.is_committed(5)


def test_a_replica_that_is_not_assigned_may_not_fetch(tmp_path: Path) -> None:
    led = partition(tmp_path)
    led.make_leader(state(replicas=(1, 2)), 0)
    with pytest.raises(KafkaError) as error:
        led.record_follower_fetch(7, 0, 0, 1)
    assert code_of(error) == Errors.NOT_LEADER_OR_FOLLOWER


def test_too_few_in_sync_replicas_refuse_acks_all_only(tmp_path: Path) -> None:
    led = partition(tmp_path, min_insync_replicas=2)
    led.make_leader(state(replicas=(1, 2, 3), isr=(1,)), 0)
    append(led, acks=1)
    with pytest.raises(KafkaError) as error:
        append(led, acks=-1)
    assert code_of(error) == Errors.NOT_ENOUGH_REPLICAS
    assert led.log.log_end_offset == 1


def test_min_insync_replicas_counts_no_more_than_there_are(tmp_path: Path) -> None:
    alone = partition(tmp_path, min_insync_replicas=2)
    alone.make_leader(state(), 0)
    append(alone, acks=-1)
    assert alone.is_committed(1)


def test_an_isr_that_shrank_after_the_append_is_told(tmp_path: Path) -> None:
    led = partition(tmp_path, min_insync_replicas=2)
    led.make_leader(state(replicas=(1, 2)), 0)
    append(led, acks=-1)
    led.make_leader(state(epoch=0, replicas=(1, 2), isr=(1,)), 0)
    with pytest.raises(KafkaError) as error:
        led.is_committed(1)
    assert code_of(error) == Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.mark.parametrize(
    ("believed", "expected"),
    [(-1, None), (4, None), (3, Errors.FENCED_LEADER_EPOCH), (5, Errors.UNKNOWN_LEADER_EPOCH)],
)
def test_epochs_that_clients_believe_in(tmp_path: Path, believed: int, expected: Errors | None) -> None:
    led = partition(tmp_path)
    led.make_leader(state(epoch=4), 0)
    if expected is None:
        led.check_leader(believed)
        return
    with pytest.raises(KafkaError) as error:
        led.check_leader(believed)
    assert code_of(error) == expected


def test_watchers_hear_of_appends_and_of_lost_leadership(tmp_path: Path) -> None:
    led = partition(tmp_path)
    led.make_leader(state(), 0)
    ear = Ear()
    led.watchers[ear] = None
    append(led)
    assert ear.heard == 1
    assert led.make_follower(state(leader=2, epoch=1, replicas=(1, 2)))
    assert ear.heard == 2
    with pytest.raises(KafkaError):
        led.is_committed(1)


def test_a_new_epoch_begins_at_the_log_end(tmp_path: Path) -> None:
    led = partition(tmp_path)
    led.make_leader(state(epoch=2), 0)
    append(led, 4)
    led.make_leader(state(epoch=5), 0)
    append(led, 1)
    assert led.end_offset_for_epoch(2, -1) == (2, 4)
    assert led.end_offset_for_epoch(4, -1) == (2, 4)
    assert led.end_offset_for_epoch(5, -1) == (5, 5)
    assert led.end_offset_for_epoch(6, -1) == (-1, -1)


@pytest.mark.parametrize(
    ("offset", "answer"), [(2, 2), (-1, 5), (6, Errors.OFFSET_OUT_OF_RANGE), (-2, Errors.OFFSET_OUT_OF_RANGE)]
)
def test_deleting_records(tmp_path: Path, offset: int, answer: int) -> None:
    led = partition(tmp_path)
    led.make_leader(state(), 0)
    append(led, 5)
    if isinstance(answer, Errors):
        with pytest.raises(KafkaError) as error:
            led.delete_records(offset)
        assert code_of(error) == answer
    else:
        assert led.delete_records(offset) == answer
        assert led.log.log_start_offset == answer


def test_a_compacted_partition_keeps_its_records(tmp_path: Path) -> None:
    led = partition(tmp_path, cleanup_policy="compact")
    led.make_leader(state(), 0)
    with pytest.raises(KafkaError) as error:
        led.delete_records(0)
    assert code_of(error) == Errors.POLICY_VIOLATION
