"""What a leader is answered to an AlterPartition: a partition's state as it is now, or why it stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.controller.paths import LeaderAndIsr
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.alter_partition import (
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)
from pybroker.protocol.types import TopicPartition


def partition_answer(index: int, answer: LeaderAndIsr | Errors) -> ResponsePartitionData:
    """One partition's."""
    if isinstance(answer, Errors):
        return ResponsePartitionData(partition_index=index, error_code=answer)
    return ResponsePartitionData(
        partition_index=index,
        leader_id=answer.leader,
        leader_epoch=answer.leader_epoch,
        isr=list(answer.isr),
        leader_recovery_state=int(answer.recovering),
        partition_epoch=answer.partition_epoch,
    )


def answers_by_name(answers: Mapping[TopicPartition, LeaderAndIsr | Errors]) -> AlterPartitionResponse:
    """All of them, for a leader in this process: topics by name."""
    topics: dict[str, ResponseTopicData] = {}
    for at, answer in answers.items():
        topic = topics.setdefault(at.topic, ResponseTopicData(topic_name=at.topic))
        topic.partitions.append(partition_answer(at.partition, answer))
    return AlterPartitionResponse(topics=list(topics.values()))
