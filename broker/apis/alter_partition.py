"""AlterPartition (API key 56, KIP-497): a leader asks the controller to change the set of replicas in sync.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | the new set, with leader epoch and partition epoch
1-2      | 1 leader recovery state (KIP-704); 2 topics by id
3        | broker epochs of the replicas (KIP-903); not looked at, as in Apache Kafka with ZooKeeper

Only the controller answers; it takes the request only from a broker's present registration. Up to version 1 a replica
that can't be in sync makes the answer OPERATION_NOT_ATTEMPTED, later INELIGIBLE_REPLICA.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.administration import require_controller
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.broker.isr_answers import partition_answer
from pybroker.controller.paths import LeaderAndIsr
from pybroker.controller.state import IsrProposal
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    ResponsePartitionData,
    ResponseTopicData,
    TopicData,
)
from pybroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

Answers = dict[TopicPartition, tuple[Errors, LeaderAndIsr | None]]


def handle(context: RequestContext, request: AlterPartitionRequest) -> Awaitable[AlterPartitionResponse]:
    """See the module's text."""
    if not context.authorize("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    require_controller(context)
    return _alter(context, request)


async def _alter(context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    version = context.api_version
    names = [_name(context, topic) for topic in request.topics]
    proposals = [
        _proposal(name, each, version)
        for name, topic in zip(names, request.topics, strict=True)
        if name is not None
        for each in topic.partitions
    ]
    answers = await context.services.controller.propose_isrs(request.broker_id, request.broker_epoch, proposals)
    return AlterPartitionResponse(
        topics=[
            ResponseTopicData(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                partitions=[_answer(name, each.partition_index, answers, version) for each in topic.partitions],
            )
            for name, topic in zip(names, request.topics, strict=True)
        ]
    )


def _name(context: RequestContext, topic: TopicData) -> str | None:
    """None for a topic id that the controller doesn't know."""
    if context.api_version < 2:
        return topic.topic_name
    services = context.services
    return services.metadata_cache.topic_name(topic.topic_id) or services.controller.topic_name(topic.topic_id)


def _proposal(topic: str, asked: PartitionData, version: int) -> IsrProposal:
    isr = [each.broker_id for each in asked.new_isr_with_epochs] if version >= 3 else asked.new_isr
    return IsrProposal(
        TopicPartition(topic, asked.partition_index),
        asked.leader_epoch,
        tuple(isr),
        bool(asked.leader_recovery_state),
        asked.partition_epoch,
    )


def _answer(topic: str | None, index: int, answers: Answers, version: int) -> ResponsePartitionData:
    if topic is None:
        return ResponsePartitionData(partition_index=index, error_code=Errors.UNKNOWN_TOPIC_ID)
    error, state = answers[TopicPartition(topic, index)]
    if error == Errors.INELIGIBLE_REPLICA and version < 2:
        error = Errors.OPERATION_NOT_ATTEMPTED
    return partition_answer(index, error if state is None else state)
