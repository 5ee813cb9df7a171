"""OffsetFetch (API key 9): what groups have committed.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | offsets in the metadata store, where oldest consumers keep them; a missing one is an error there
1        | offsets of the group's coordinator
2        | all topics of a group (null), and an error of the whole answer; before, it is at each partition
3-6      | 3 throttle time; 4 throttles after answering; 5 leader epoch; 6 flexible
7        | require stable: what an open transaction may change is UNSTABLE_OFFSET_COMMIT (KIP-447)
8-9      | 8 several groups (KIP-709); 9 member id and epoch (KIP-848)
10       | topic ids instead of names

A partition without a committed offset is -1 without an error, whether it exists or not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from pybroker.broker.stored_offsets import stored_offset
from pybroker.controller.store import StoreError
from pybroker.coordinator.offsets import Place
from pybroker.coordinator.shard import OffsetState
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from pybroker.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

TOP_LEVEL_ERROR_SINCE = 2
SEVERAL_GROUPS = 8
TOPIC_IDS_SINCE = 10
NO_OFFSET = NO_EPOCH = -1


def handle(
    context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """See the module's text."""
    version = context.api_version
    if version >= SEVERAL_GROUPS:
        return OffsetFetchResponse(groups=[_group(context, each, request.require_stable) for each in request.groups])
    if version == 0:
        if not context.authorize("DESCRIBE", "GROUP", request.group_id):
            raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
        return _from_store(context, request)
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    found = _group(context, OffsetFetchRequestGroup(group_id=request.group_id, topics=topics), request.require_stable)
    if found.error_code:
        raise KafkaError(Errors(found.error_code))
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in found.topics
        ]
    )


def _group(context: RequestContext, asked: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
    """One group's answer."""
    group_id = asked.group_id
    answer = OffsetFetchResponseGroup(group_id=group_id)
    if not context.authorize("DESCRIBE", "GROUP", group_id):
        answer.error_code = Errors.GROUP_AUTHORIZATION_FAILED
        return answer
    try:
        if asked.topics is None:
            answer.topics = _all_topics(context, asked, require_stable)
        else:
            answer.topics = _some_topics(context, asked, asked.topics, require_stable)
    except KafkaError as error:
        answer.error_code = error.code
    return answer


def _fetch(
    context: RequestContext, asked: OffsetFetchRequestGroup, places: Iterable[Place] | None, require_stable: bool
) -> list[tuple[Place, OffsetState]]:
    found: list[tuple[Place, OffsetState]] = context.services.groups.fetch_offsets(
        asked.group_id, places, require_stable, asked.member_id, asked.member_epoch
    )
    return found


def _all_topics(
    context: RequestContext, asked: OffsetFetchRequestGroup, require_stable: bool
) -> list[OffsetFetchResponseTopics]:
    """All that is committed, of topics that the principal may know of (and, by id, that there are)."""
    by_id = context.api_version >= TOPIC_IDS_SINCE
    topics: dict[str, OffsetFetchResponseTopics] = {}
    for (name, index), state in _fetch(context, asked, None, require_stable):
        topic = topics.get(name)
        if topic is None:
            topic_id = context.services.metadata_cache.topic_id(name) if by_id else ZERO_UUID
            topic = topics[name] = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
        topic.partitions.append(_row(index, state))
    return [
        topic
        for name, topic in topics.items()
        if context.authorize("DESCRIBE", "TOPIC", name) and not (by_id and topic.topic_id == ZERO_UUID)
    ]


def _some_topics(
    context: RequestContext, asked: OffsetFetchRequestGroup, topics: list[OffsetFetchRequestTopics],
    require_stable: bool,
) -> list[OffsetFetchResponseTopics]:  # fmt: skip
    by_id = context.api_version >= TOPIC_IDS_SINCE
    cache = context.services.metadata_cache
    refused: list[OffsetFetchResponseTopics] = []
    allowed: list[tuple[OffsetFetchRequestTopics, str]] = []
    for topic in topics:
        name = cache.topic_name(topic.topic_id) if by_id else topic.name
        if name is not None and context.authorize("DESCRIBE", "TOPIC", name):
            allowed.append((topic, name))
            continue
        error = Errors.UNKNOWN_TOPIC_ID if name is None else Errors.TOPIC_AUTHORIZATION_FAILED
        rows = [_row(index, OffsetState(None, error)) for index in topic.partition_indexes]
        refused.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=rows))
    places = [(name, index) for topic, name in allowed for index in topic.partition_indexes]
    found = iter(_fetch(context, asked, places, require_stable))
    answers = [
        OffsetFetchResponseTopics(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[_row(index, next(found)[1]) for index in topic.partition_indexes],
        )
        for topic, _ in allowed
    ]
    return answers + refused


def _row(index: int, state: OffsetState) -> OffsetFetchResponsePartitions:
    offset, error = state
    if offset is None:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=NO_OFFSET, committed_leader_epoch=NO_EPOCH, metadata="",
            error_code=error,
        )  # fmt: skip
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


async def _from_store(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    response = OffsetFetchResponse()
    for topic in request.topics or ():
        answer = OffsetFetchResponseTopic(name=topic.name)
        response.topics.append(answer)
        allowed = context.authorize("DESCRIBE", "TOPIC", topic.name)
        known = context.services.metadata_cache.partitions(topic.name)
        for index in topic.partition_indexes:
            row = OffsetFetchResponsePartition(partition_index=index, committed_offset=NO_OFFSET, metadata="")
            answer.partitions.append(row)
            if not allowed:
                row.error_code = Errors.TOPIC_AUTHORIZATION_FAILED
                continue
            row.error_code = Errors.UNKNOWN_TOPIC_OR_PARTITION
            if index not in known:
                continue
            try:
                offset = await stored_offset(context.services.store, request.group_id, (topic.name, index))
            except StoreError:
                row.error_code = Errors.UNKNOWN_SERVER_ERROR
                continue
            if offset is not None:
                row.committed_offset, row.error_code = offset, Errors.NONE
    return response


def error_response(request: OffsetFetchRequest, error: KafkaError, version: int) -> OffsetFetchResponse:
    """The error of the whole answer; before version 2 at every partition; from 8 on at every group."""
    if version >= SEVERAL_GROUPS:
        return OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group_id=each.group_id, error_code=error.code) for each in request.groups]
        )
    if version >= TOP_LEVEL_ERROR_SINCE:
        return OffsetFetchResponse(error_code=error.code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error.code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )
