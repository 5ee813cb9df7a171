from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.broker.apis import produce
from pybroker.config import BrokerConfig
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from pybroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.log_manager import LogManager
from tests.storage.logs import batch


@pytest.mark.parametrize(("epoch", "sequence", "code"), [
    (0, 7, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (1, 7, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (-1, 0, Errors.INVALID_PRODUCER_EPOCH),
])  # fmt: skip
async def test_a_leader_that_may_be_deposed_calls_nothing_lost(
    tmp_path: Path, epoch: int, sequence: int, code: Errors
) -> None:
    """A producer whose last batch went to the true leader sends the next one here: were it told that one is missing,
    it would give up for good."""
    logs = LogManager(BrokerConfig({}), [tmp_path], ManualClock())
    logs.load()
    manager = ReplicaManager(1, logs, logs.clock, lambda *_: None, lambda _: {})
    state = LeaderAndIsrPartitionState(
        partition_index=0, leader=1, leader_epoch=1, partition_epoch=1, replicas=[1], isr=[1]
    )
    await manager.become_leader_or_follower(
        LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState(topic_name="t", partition_states=[state])])
    )
    cache = SimpleNamespace(leader=lambda *_: None)
    context: Any = SimpleNamespace(
        api_version=9, listener="PLAINTEXT", services=SimpleNamespace(replica_manager=manager, metadata_cache=cache)
    )

    def send(epoch: int, sequence: int) -> int:
        records = batch(producer_id=5, producer_epoch=epoch, base_sequence=sequence)
        rows = [PartitionProduceData(index=0, records=records)]
        request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=rows)])
        response = produce.handle(context, request)
        assert isinstance(response, ProduceResponse)
        return response.responses[0].partition_responses[0].error_code

    assert send(0, 0) == Errors.NONE
    assert send(epoch, sequence) == code
    manager.session_changed("suspended")
    assert send(epoch, sequence) == Errors.NOT_LEADER_OR_FOLLOWER
    assert send(0, 1) == Errors.NONE  # it leads on, as far as it knows
    manager.session_changed("connected")
    assert send(epoch, sequence) == code
    logs.shutdown()
