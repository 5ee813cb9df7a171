"""DeleteRecords (API key 21): move the start of partitions (KIP-107).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | the same; 1 throttles after answering, 2 flexible

Offset -1 means the high watermark. The answer's low watermark is the smallest log start offset of the replicas; it is
-1 beside an error: OFFSET_OUT_OF_RANGE above the high watermark, POLICY_VIOLATION where cleanup.policy has no delete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
NO_WATERMARK = -1


def handle(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move each partition's start; segments below it go with the next retention check."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_one(context, topic.name, wanted) for wanted in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _one(context: RequestContext, topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    try:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION)
        partition = context.services.replica_manager.partition(topic, wanted.partition_index)
        low = partition.delete_records(wanted.offset)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=NO_WATERMARK, error_code=error.code
        )
    return DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=low)


def error_response(request: DeleteRecordsRequest, error: KafkaError, version: int) -> DeleteRecordsResponse:
    """The error at every partition of the request."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=wanted.partition_index, low_watermark=NO_WATERMARK, error_code=error.code
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
