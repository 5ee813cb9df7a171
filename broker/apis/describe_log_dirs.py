"""DescribeLogDirs (API key 35, KIP-113): log directories, their replicas and sizes.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | 1 throttles after answering; 2 flexible
3-4      | 3 an error for the whole answer; 4 size of the volume and what is free on it (KIP-827)
5        | cordoned directories (KIP-1066), of which there are none

Null asks for all partitions. A directory that failed is told with KAFKA_STORAGE_ERROR and no replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext
    from pybroker.storage.log_manager import DirectoryDescription


def handle(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """See the module's text."""
    if not context.authorize("DESCRIBE", "CLUSTER", CLUSTER_NAME):
        return DescribeLogDirsResponse(error_code=Errors.CLUSTER_AUTHORIZATION_FAILED, results=[])
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(each.topic, index) for each in request.topics for index in each.partitions}
    directories = context.services.log_manager.describe()
    return DescribeLogDirsResponse(results=[_directory(directory, wanted) for directory in directories])


def _directory(directory: DirectoryDescription, wanted: set[tuple[str, int]] | None) -> DescribeLogDirsResult:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for replica in directory.replicas:
        name, index = replica.topic_partition
        if wanted is not None and (name, index) not in wanted:
            continue
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = DescribeLogDirsTopic(name=name, partitions=[])
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=index,
                partition_size=replica.size,
                offset_lag=replica.offset_lag,
                is_future_key=replica.is_future,
            )
        )
    return DescribeLogDirsResult(
        error_code=directory.error,
        log_dir=str(directory.path),
        topics=list(topics.values()),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )
