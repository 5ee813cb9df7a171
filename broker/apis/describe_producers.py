"""DescribeProducers (API key 61, KIP-664): the producers that a partition's leader knows.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | flexible

Known are those that wrote within producer.id.expiration.ms, or have a transaction open. Only an error of the topic has
a message, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext
    from pybroker.replication.partition import Partition

NO_SUCH_TOPIC = "This server does not host this topic-partition."
NOT_ALLOWED = "Topic authorization failed."


def handle(context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """See the module's text."""
    return DescribeProducersResponse(topics=[_topic(context, wanted) for wanted in request.topics])


def _topic(context: RequestContext, wanted: TopicRequest) -> TopicResponse:
    name = wanted.name
    if not context.authorize("READ", "TOPIC", name):
        return _refused(wanted, Errors.TOPIC_AUTHORIZATION_FAILED, NOT_ALLOWED)
    if name not in context.services.metadata_cache.topics:
        return _refused(wanted, Errors.UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_TOPIC)
    return TopicResponse(name=name, partitions=[_partition(context, name, index) for index in wanted.partition_indexes])


def _refused(wanted: TopicRequest, code: Errors, message: str | None) -> TopicResponse:
    return TopicResponse(
        name=wanted.name,
        partitions=[
            PartitionResponse(partition_index=index, error_code=code, error_message=message)
            for index in wanted.partition_indexes
        ],
    )


def _partition(context: RequestContext, topic: str, index: int) -> PartitionResponse:
    try:
        partition = context.services.replica_manager.partition(topic, index)
        partition.check_leader()
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code)
    return PartitionResponse(partition_index=index, active_producers=_producers(partition))


def _producers(partition: Partition) -> list[ProducerState]:
    return [
        ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.txn_first_offset,
        )
        for entry in partition.log.producers.entries.values()
    ]


def error_response(request: DescribeProducersRequest, error: KafkaError, version: int) -> DescribeProducersResponse:
    """The error at every partition of the request."""
    return DescribeProducersResponse(topics=[_refused(wanted, error.code, None) for wanted in request.topics])
