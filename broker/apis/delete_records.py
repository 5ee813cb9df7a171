"""DeleteRecords (API key 21): move the start of partitions (KIP-107).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | the same; 1 throttles after answering, 2 flexible

Offset -1 means the high watermark. The answer comes when all live replicas have moved their start, up to the timeout
(REQUEST_TIMED_OUT); its low watermark is the smallest log start offset of the replicas. It is -1 beside an error:
OFFSET_OUT_OF_RANGE above the high watermark, POLICY_VIOLATION where cleanup.policy has no delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.controller.topic_names import INTERNAL_TOPICS
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from pybroker.replication.delete_records import DeletionWait
from pybroker.replication.partition import Partition

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext
    from pybroker.broker.services import Services

NO_WATERMARK = -1
HIGH_WATERMARK = -1

Waiting = list[tuple[DeleteRecordsPartitionResult, Partition, int]]


def handle(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Awaitable[DeleteRecordsResponse]:
    """Move each partition's start; segments below it go with the next retention check."""
    waiting: Waiting = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_one(context, topic.name, wanted, waiting) for wanted in topic.partitions]
            )
            for topic in request.topics
        ]
    )
    return _replicated(context, request, response, waiting) if waiting else response


def _one(
    context: RequestContext, topic: str, wanted: DeleteRecordsPartition, waiting: Waiting
) -> DeleteRecordsPartitionResult:
    row = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=NO_WATERMARK)
    try:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION)
        partition: Partition = context.services.replica_manager.partition(topic, wanted.partition_index)
        target = partition.log.high_watermark if wanted.offset == HIGH_WATERMARK else wanted.offset
        row.low_watermark = partition.delete_records(wanted.offset)
        if row.low_watermark < target:
            waiting.append((row, partition, target))
    except KafkaError as error:
        row.error_code = error.code
    return row


async def _replicated(
    context: RequestContext, request: DeleteRecordsRequest, response: DeleteRecordsResponse, waiting: Waiting
) -> DeleteRecordsResponse:
    """Wait for the followers of each partition, which learn of the new start with their next fetch."""
    services: Services = context.services
    cache = services.metadata_cache  # its brokers are replaced with each update

    def is_alive(broker_id: int) -> bool:
        return broker_id in cache.brokers

    async def settle(row: DeleteRecordsPartitionResult, partition: Partition, target: int) -> None:
        wait = DeletionWait(partition, target, is_alive, services.timer, request.timeout_ms)
        try:
            row.low_watermark = await wait.low_watermark()
        except KafkaError as error:
            row.low_watermark, row.error_code = NO_WATERMARK, error.code

    await asyncio.gather(*(settle(*each) for each in waiting))
    return response


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
