"""ListOffsets (API key 2).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | a list of segment offsets below a time, instead of one offset
1-6      | 1 one (timestamp, offset); 2 isolation level; 4 leader epochs; 6 flexible
7-9      | 7 the offset of the largest timestamp (-3); 8 the earliest local offset (-4); 9 the latest tiered offset (-5)
10-11    | 10 a timeout; 11 the earliest offset that waits for upload (-6)

Consumers see no further than the high watermark, or the last stable offset with read_committed. A special timestamp in
a version too old for it, or one that does not exist, is UNSUPPORTED_VERSION. A partition named twice is
INVALID_REQUEST. There is no tiered storage: -5 and -6 find nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.cold import read_cold
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pybroker.storage.files import WouldBlock

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext
    from pybroker.replication.partition import Partition

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
# Special timestamp → the first version that knows it.
KNOWN_FROM = {
    LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
READ_COMMITTED = 1
DEBUGGING_CONSUMER = -2
NOTHING = (-1, -1, -1)


def handle(
    context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Answer at once, unless a look-up by time has to read what is not in the page cache."""
    try:
        return _answer(context, request, blocking=False)
    except WouldBlock as cold:
        return read_cold(
            context.services.reader_threads, cold, lambda blocking: _answer(context, request, blocking=blocking)
        )


def _answer(context: RequestContext, request: ListOffsetsRequest, *, blocking: bool) -> ListOffsetsResponse:
    named = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    topics = []
    for topic in request.topics:
        rows = []
        for wanted in topic.partitions:
            try:
                if named[topic.name, wanted.partition_index] > 1:
                    raise KafkaError(Errors.INVALID_REQUEST)
                rows.append(_one(context, request, topic.name, wanted, blocking))
            except KafkaError as error:
                rows.append(ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error.code))
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
    return ListOffsetsResponse(topics=topics)


def _one(
    context: RequestContext, request: ListOffsetsRequest, topic: str, wanted: ListOffsetsPartition, blocking: bool
) -> ListOffsetsPartitionResponse:
    version = context.api_version
    partition: Partition = context.services.replica_manager.partition(topic, wanted.partition_index)
    if version == 0:
        partition.check_leader()
        offsets = _old_style(partition, request.replica_id, wanted)
        return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, old_style_offsets=offsets)
    if wanted.timestamp < 0 and version < KNOWN_FROM.get(wanted.timestamp, version + 1):
        raise KafkaError(Errors.UNSUPPORTED_VERSION)
    if request.replica_id != DEBUGGING_CONSUMER:
        partition.check_leader(wanted.current_leader_epoch)
    timestamp, offset, epoch = _find(partition, request, wanted, version, blocking)
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _visible_end(partition: Partition, replica_id: int, isolation: int) -> int:
    log = partition.log
    if replica_id >= 0:
        return log.log_end_offset
    return log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark


def _find(
    partition: Partition, request: ListOffsetsRequest, wanted: ListOffsetsPartition, version: int, blocking: bool
) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch), NOTHING where there is no such record."""
    log = partition.log
    end = _visible_end(partition, request.replica_id, request.isolation_level)
    if wanted.timestamp == LATEST:
        _check_watermark(partition, request.replica_id, version)
        return -1, end, partition.leader_epoch
    if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
        return -1, log.log_start_offset, -1 if epoch is None else epoch
    if wanted.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    if wanted.timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset(blocking=blocking)
    else:
        found = log.offset_for_timestamp(wanted.timestamp, blocking=blocking)
    if found is None:
        return NOTHING
    if found[1] >= end:
        _check_watermark(partition, request.replica_id, version)
        return NOTHING
    return found


def _check_watermark(partition: Partition, replica_id: int, version: int) -> None:
    """A new leader whose high watermark has not reached its epoch yet could answer a client with an offset that goes
    back. A follower sees the whole log; and the watermark may be waiting for it."""
    leader = partition.leader
    if replica_id < 0 and leader is not None and partition.log.high_watermark < leader.epoch_start_offset:
        raise KafkaError(Errors.OFFSET_NOT_AVAILABLE if version >= 5 else Errors.LEADER_NOT_AVAILABLE)


def _old_style(partition: Partition, replica_id: int, wanted: ListOffsetsPartition) -> list[int]:
    """Version 0: base offsets of segments below the time, newest first, none beyond what a consumer sees."""
    offsets = partition.log.legacy_offsets_before(wanted.timestamp, wanted.max_num_offsets)
    if replica_id >= 0:
        return offsets
    mark = partition.log.high_watermark
    if offsets and offsets[0] > mark:
        return [mark, *(offset for offset in offsets if offset < mark)][: wanted.max_num_offsets]
    return offsets


def error_response(request: ListOffsetsRequest, error: KafkaError, version: int) -> ListOffsetsResponse:
    """The error at every partition of the request."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error.code)
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
