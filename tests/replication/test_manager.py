"""The partitions that a broker hosts, as the controller's orders make them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.config import BrokerConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
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
