"""DescribeTopicPartitions (API key 75, KIP-966): topics page by page, in order of their names.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | all there is

No topics mean all. At most response_partition_limit partitions are told, and max.request.partition.size.limit; the
cursor names where to go on. Only 4.x serves this. Eligible leader replicas are a matter of KRaft: none here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import authorized_operations
from pybroker.broker.metadata_cache import Topic
from pybroker.controller import topic_names
from pybroker.controller.topic_names import INTERNAL_TOPICS
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from pybroker.protocol.messages.metadata import MetadataResponsePartition

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

# Partitions are described as in this version of Metadata.
METADATA_VERSION = 12


def handle(context: RequestContext, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """See the module's text."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise KafkaError(
            Errors.INVALID_REQUEST,
            "DescribeTopicPartitionsRequest cursor partition must be valid: "
            f"Cursor(topicName='{cursor.topic_name}', partitionIndex={cursor.partition_index})",
        )
    cache = context.services.metadata_cache
    named = [topic.name for topic in request.topics]
    names = sorted({name for name in named or cache.topics if cursor is None or name >= cursor.topic_name})
    largest = context.services.config.int("max.request.partition.size.limit")
    left = max(1, min(request.response_partition_limit, largest))
    response = DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
    for name in names:
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        if not context.authorize("DESCRIBE", "TOPIC", name):
            if named:
                response.topics.append(_refused(name, Errors.TOPIC_AUTHORIZATION_FAILED))
            continue
        topic = cache.topics.get(name)
        if topic is None:
            response.topics.append(_missing(context, name))
            continue
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        indexes = [index for index in sorted(topic.partitions) if index >= start]
        response.topics.append(_describe(context, topic, indexes[:left]))
        if len(indexes) > left:
            response.next_cursor = Cursor(topic_name=name, partition_index=indexes[left])
            break
        left -= len(indexes)
    return response


def _describe(context: RequestContext, topic: Topic, indexes: list[int]) -> DescribeTopicPartitionsResponseTopic:
    cache = context.services.metadata_cache
    described = (
        cache.describe_partition(topic.partitions[index], METADATA_VERSION, context.listener) for index in indexes
    )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=[_partition(partition) for partition in described],
        topic_authorized_operations=authorized_operations(context, "TOPIC", topic.name),
    )


def _partition(known: MetadataResponsePartition) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=known.error_code,
        partition_index=known.partition_index,
        leader_id=known.leader_id,
        leader_epoch=known.leader_epoch,
        replica_nodes=known.replica_nodes,
        isr_nodes=known.isr_nodes,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=known.offline_replicas,
    )


def _missing(context: RequestContext, name: str) -> DescribeTopicPartitionsResponseTopic:
    valid = topic_names.is_valid(name)
    missing = _refused(name, Errors.UNKNOWN_TOPIC_OR_PARTITION if valid else Errors.INVALID_TOPIC_EXCEPTION)
    missing.topic_authorized_operations = authorized_operations(context, "TOPIC", name)
    return missing


def _refused(name: str, error: Errors) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, is_internal=name in INTERNAL_TOPICS, partitions=[]
    )


def error_response(
    request: DescribeTopicPartitionsRequest, error: KafkaError, version: int
) -> DescribeTopicPartitionsResponse:
    """The error at every topic of the request."""
    return DescribeTopicPartitionsResponse(topics=[_refused(topic.name, error.code) for topic in request.topics])
