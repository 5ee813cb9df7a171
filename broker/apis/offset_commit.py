"""OffsetCommit (API key 8): a group's offsets, committed by one of its members or by somebody outside.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | offsets live in the metadata store under /consumers, as with the oldest consumers; no group is asked
1        | generation and member id; a commit time of its own
2-4      | 2 how long it is kept, instead of the commit time; 3 throttle time; 4 throttles after answering
5-6      | 5 kept as long as the group lives, by the broker's setting (KIP-211); 6 leader epoch
7-9      | 7 group.instance.id; 8 flexible; 9 the member epoch of KIP-848 as generation
10       | topic ids instead of names

Every partition has an error of its own: unknown topics, too long metadata. Whether the member may commit is the same
for all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from pybroker.broker.stored_offsets import store_offset
from pybroker.coordinator.effects import Reply
from pybroker.coordinator.offsets import NO_EXPIRY, CommittedOffset, Place
from pybroker.coordinator.shard import Committer
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

TOPIC_IDS_SINCE = 10
BY_DEFAULT = -1
Wanted = list[tuple[Place, CommittedOffset]]


def handle(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """See the module's text."""
    if not context.authorize("READ", "GROUP", request.group_id):
        raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED)
    response = OffsetCommitResponse()
    wanted: Wanted = []
    rows: list[OffsetCommitResponsePartition] = []
    _sort_out(context, request, response, wanted, rows)
    if not wanted:
        return response
    if context.api_version == 0:
        return _store(context, request.group_id, wanted, rows, response)

    def finish(errors: Sequence[Errors]) -> OffsetCommitResponse:
        for row, error in zip(rows, errors, strict=True):
            row.error_code = error
        return response

    who = Committer(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
    )
    reply = Reply(context.api_version, finish)
    context.services.groups.commit(who, wanted, reply)
    answer: OffsetCommitResponse | Awaitable[OffsetCommitResponse] = reply.result()
    return answer


def _sort_out(
    context: RequestContext, request: OffsetCommitRequest, response: OffsetCommitResponse, wanted: Wanted,
    rows: list[OffsetCommitResponsePartition],
) -> None:  # fmt: skip
    """Make the rows of the answer; `wanted` and `rows` get those that are to be committed."""
    cache = context.services.metadata_cache
    by_id = context.api_version >= TOPIC_IDS_SINCE
    now = context.services.clock.now_ms()
    expires_at = NO_EXPIRY if request.retention_time_ms == BY_DEFAULT else now + request.retention_time_ms
    for topic in request.topics:
        answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answered)
        name = cache.topic_name(topic.topic_id) if by_id else topic.name
        error = Errors.NONE
        if name is None:
            error = Errors.UNKNOWN_TOPIC_ID
        elif not context.authorize("READ", "TOPIC", name):
            error = Errors.TOPIC_AUTHORIZATION_FAILED
        partitions = cache.partitions(name) if name is not None and not error else {}
        for each in topic.partitions:
            row = OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
            answered.partitions.append(row)
            if error:
                continue
            if each.partition_index not in partitions:
                row.error_code = Errors.UNKNOWN_TOPIC_OR_PARTITION
                continue
            assert name is not None
            wanted.append(((name, each.partition_index), _offset(each, now, expires_at)))
            rows.append(row)


def _offset(each: OffsetCommitRequestPartition, now: int, expires_at: int) -> CommittedOffset:
    return CommittedOffset(
        each.committed_offset,
        each.committed_leader_epoch,
        each.committed_metadata or "",
        now if each.commit_timestamp == BY_DEFAULT else each.commit_timestamp,
        expires_at,
    )


async def _store(
    context: RequestContext, group_id: str, wanted: Wanted, rows: list[OffsetCommitResponsePartition],
    response: OffsetCommitResponse,
) -> OffsetCommitResponse:  # fmt: skip
    limit = context.services.config.int("offset.metadata.max.bytes")
    for (place, offset), row in zip(wanted, rows, strict=True):
        if len(offset.metadata) > limit:
            row.error_code = Errors.OFFSET_METADATA_TOO_LARGE
            continue
        row.error_code = await store_offset(context.services.store, group_id, place, offset.offset)
    return response


def error_response(request: OffsetCommitRequest, error: KafkaError, version: int) -> OffsetCommitResponse:
    """The error at every partition of the request."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error.code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
