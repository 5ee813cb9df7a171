"""AlterReplicaLogDirs (API key 34, KIP-113): move replicas of this broker to other log directories.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | 1 throttles after answering; 2 flexible

The answer says that a move has begun; DescribeLogDirs tells how far it is. LOG_DIR_NOT_FOUND for a path that is not in
log.dirs (as DescribeLogDirs spells it), KAFKA_STORAGE_ERROR where either directory is offline. A partition that has no
replica here is answered with the error a Fetch would get, and will be made in that directory when it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from pybroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """See the module's text."""
    if not context.authorize("ALTER", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    outcomes: dict[str, dict[int, Errors]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                outcomes.setdefault(topic.name, {})[index] = _move(context, directory.path, topic.name, index)
    return _response(outcomes)


def _move(context: RequestContext, path: str, topic: str, index: int) -> Errors:
    services, topic_partition = context.services, TopicPartition(topic, index)
    mover = services.log_manager.mover
    try:
        directory = mover.directory(path)
        if services.log_manager.get(topic_partition) is None:
            mover.prefer(topic_partition, directory)
        services.replica_manager.partition(topic, index)
        mover.move(topic_partition, directory)
    except KafkaError as error:
        return error.code
    return Errors.NONE


def _response(outcomes: dict[str, dict[int, Errors]]) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index, code in partitions.items()
                ],
            )
            for topic, partitions in outcomes.items()
        ]
    )


def error_response(request: AlterReplicaLogDirsRequest, error: KafkaError, version: int) -> AlterReplicaLogDirsResponse:
    """The error at every partition of the request."""
    outcomes: dict[str, dict[int, Errors]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            outcomes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, error.code))
    return _response(outcomes)
