"""OffsetForLeaderEpoch (API key 23): where a leader epoch ends, for truncation (KIP-101, KIP-320).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | asked by epoch, answered with an offset; 1 the epoch that was found
2        | the client's current leader epoch, fenced like a Fetch's; throttle time
3-4      | the asking replica (-2: a consumer); 4 flexible

An epoch that this leader has not reached is answered with -1/-1 and no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import KafkaError
from pybroker.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Answer from the leader epoch cache of each partition."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_one(context, topic.topic, wanted) for wanted in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _one(context: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = context.services.replica_manager.partition(topic, wanted.partition)
        epoch, end = partition.end_offset_for_epoch(wanted.leader_epoch, wanted.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end)


def error_response(
    request: OffsetForLeaderEpochRequest, error: KafkaError, version: int
) -> OffsetForLeaderEpochResponse:
    """The error at every partition of the request."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(partition=wanted.partition, error_code=error.code) for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
