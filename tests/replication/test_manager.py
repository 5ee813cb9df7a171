"""The partitions that a broker hosts, as the controller's orders make them."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from pybroker.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition
from pybroker.storage.log_manager import LogManager


class Followed:
    """Fetchers that only note whom they follow."""

    def __init__(self) -> None:
        self.partitions: list[Partition] = []

    def follow(self, partition: Partition) -> None:
        self.partitions.append(partition)

    def stop(self, partition: Partition) -> None:
        if partition in self.partitions:
            self.partitions.remove(partition)


def order(epoch: int, leader: int) -> LeaderAndIsrRequest:
    state = LeaderAndIsrPartitionState(
        partition_index=0, leader=leader, leader_epoch=epoch, partition_epoch=epoch, replicas=[1, 2], isr=[1, 2]
    )
    return LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState(topic_name="t", partition_states=[state])])


@pytest_asyncio.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaManager]:
    logs = LogManager(BrokerConfig({}), [tmp_path], ManualClock())
    logs.load()
    yield ReplicaManager(1, logs, logs.clock, lambda *_: None, lambda _: {})
    logs.shutdown()


def stop(delete: bool) -> StopReplicaRequest:
    state = StopReplicaPartitionState(partition_index=0, leader_epoch=9, delete_partition=delete)
    return StopReplicaRequest(topic_states=[StopReplicaTopicState(topic_name="t", partition_states=[state])])


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("known_before", [False, True])
async def test_a_replica_in_a_failed_directory_is_not_stopped(
    replicas: ReplicaManager, tmp_path: Path, known_before: bool, delete: bool
) -> None:
    """Else the controller takes it for deleted, and its log comes back with the directory."""
    logs = replicas._log_manager
    logs.on_dir_failure = lambda _, lost: replicas.logs_went_offline(lost)
    if known_before:
        await replicas.become_leader_or_follower(order(1, leader=1))
    logs.fail_directory(logs.directories[0], OSError(5, "Input/output error"))
    answer = await replicas.become_leader_or_follower(order(2, leader=1))
    assert answer.topics[0].partition_errors[0].error_code == Errors.KAFKA_STORAGE_ERROR
    for _ in range(2):
        stopped = await replicas.stop_replicas(stop(delete))
        assert [each.error_code for each in stopped.partition_errors] == [Errors.KAFKA_STORAGE_ERROR]
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            replicas.partition("t", 0)


async def test_a_replica_that_met_a_full_disk_can_be_stopped(
    replicas: ReplicaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is not lost: nothing comes back with it."""
    with monkeypatch.context() as patches:
        patches.setattr(LogManager, "_create", full)
        answer = await replicas.become_leader_or_follower(order(1, leader=1))
        assert answer.topics[0].partition_errors[0].error_code == Errors.KAFKA_STORAGE_ERROR
    stopped = await replicas.stop_replicas(stop(delete=True))
    assert [each.error_code for each in stopped.partition_errors] == [Errors.NONE]
    await replicas.become_leader_or_follower(order(2, leader=1))
    assert replicas.partition("t", 0).leader is not None


async def test_a_full_disk_beside_a_failed_one_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = [tmp_path / "x", tmp_path / "y"]
    for each in directories:
        each.mkdir()
    logs = LogManager(BrokerConfig({}), directories, ManualClock())
    logs.load()
    logs.fail_directory(logs.directories[0], OSError(5, "Input/output error"))
    replicas = ReplicaManager(1, logs, logs.clock, lambda *_: None, lambda _: {})
    request = order(1, leader=1)
    request.topic_states[0].partition_states[0].is_new = True
    with monkeypatch.context() as patches:
        patches.setattr(LogManager, "_create", full)
        answer = await replicas.become_leader_or_follower(request)
        assert answer.topics[0].partition_errors[0].error_code == Errors.KAFKA_STORAGE_ERROR
    stopped = await replicas.stop_replicas(stop(delete=True))
    assert [each.error_code for each in stopped.partition_errors] == [Errors.NONE]
    logs.shutdown()


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_only_an_order_says_who_leads_after_a_lost_session(replicas: ReplicaManager) -> None:
    await replicas.become_leader_or_follower(order(1, leader=1))
    partition = replicas.partition("t", 0)
    assert not replicas.may_be_deposed(partition)
    replicas.session_changed("suspended")
    assert replicas.may_be_deposed(partition)
    replicas.session_changed("connected")  # the same session: this broker has not been dead for anybody
    assert not replicas.may_be_deposed(partition)
    for epoch in (1, 2):
        replicas.session_changed("suspended")
        replicas.session_changed("expired")
        replicas.session_changed("connected")
        assert replicas.may_be_deposed(partition)
        await replicas.become_leader_or_follower(order(0, leader=1))  # an old one
        assert replicas.may_be_deposed(partition)
        await replicas.become_leader_or_follower(order(epoch, leader=1))  # in the same leader epoch, or a new one
        assert not replicas.may_be_deposed(partition)


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_leaving_broker_does_not_follow_what_it_led(replicas: ReplicaManager, leaving: bool) -> None:
    """Its new leader would take it into the ISR, and wait for it in vain a moment later."""
    followed = Followed()
    replicas.replicate(followed, None)  # type: ignore[arg-type]
    await replicas.become_leader_or_follower(order(1, leader=1))
    replicas.leaving = leaving
    answer = await replicas.become_leader_or_follower(order(2, leader=2))
    assert answer.topics[0].partition_errors[0].error_code == 0
    assert replicas.partition("t", 0).leader is None
    assert len(followed.partitions) == (0 if leaving else 1)
