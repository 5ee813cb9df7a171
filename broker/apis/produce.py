"""Produce (API key 0).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | message formats 0 and 1 (and 2), converted on the way in; 1 throttle time, 2 log append time
3-8      | format 2, exactly one batch a partition, transactional id; 5 log start offset; 8 record errors (KIP-467)
9-10     | flexible; 10 the current leader and its endpoint beside an error (KIP-951)
11-12    | transaction errors that clients understand (KIP-890)
13       | topics by id (KIP-516)

acks=0 has no answer; an error closes the connection instead. Produce never creates topics. A partition named twice in
one request counts once, with its last records. Records are appended in the request's own call: only replication,
conversion and verification make it wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.context import CloseConnection
from pybroker.controller.topic_names import INTERNAL_TOPICS
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pybroker.protocol.records.header import ATTRIBUTES_AT, MAGIC_AT, MAGIC_V2, TRANSACTIONAL_FLAG, read_header
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.produce import CommitWait, ProduceWait
from pybroker.storage.append import InvalidProduce, RecordsRejected
from pybroker.storage.log import AppendInfo

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext
    from pybroker.replication.partition import Partition

logger = logging.getLogger(__name__)

# Refusals before the batch reached the log: their answer carries no log start offset.
WITHOUT_LOG_START = frozenset({
    Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.NOT_LEADER_OR_FOLLOWER, Errors.MESSAGE_TOO_LARGE,
    Errors.RECORD_LIST_TOO_LARGE, Errors.CORRUPT_MESSAGE, Errors.KAFKA_STORAGE_ERROR, Errors.NOT_ENOUGH_REPLICAS,
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
})  # fmt: skip

# What a producer takes for lost records, or for the work of another producer.
OF_A_SEQUENCE = frozenset({
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, Errors.UNKNOWN_PRODUCER_ID, Errors.INVALID_PRODUCER_EPOCH,
})  # fmt: skip

# The transaction coordinator that would verify a transactional batch (KIP-890) is not there yet; clients retry this.
UNVERIFIED = (
    "Unable to verify the partition has been added to the transaction. Underlying error: COORDINATOR_NOT_AVAILABLE"
)
RECORD_ERRORS_SINCE = 8
ATTRIBUTES_LOW_BYTE = ATTRIBUTES_AT + 1

# (response row, its partition, the pending append or the offset to be committed)
Waiting = list[tuple[PartitionProduceResponse, "Partition", "Awaitable[AppendInfo] | int"]]


def handle(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append; answered at once unless something has to be waited for."""
    acks, version = request.acks, context.api_version
    if acks not in (-1, 0, 1):
        return error_response(request, KafkaError(Errors.INVALID_REQUIRED_ACKS), version)
    response = ProduceResponse()
    waiting: Waiting = []
    unknown: list[TopicProduceResponse] = []  # Kafka names them behind the others
    for topic in request.topic_data:
        rows = _append_topic(context, request, topic, response, waiting)
        answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=rows)
        if rows and rows[0].error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION:
            unknown.append(answer)
        else:
            response.responses.append(answer)
    if unknown:
        response.responses += unknown
    if waiting:
        appended = [(row, partition, what) for row, partition, what in waiting if isinstance(what, int)]
        if len(appended) == len(waiting):
            return ProduceWait(response, appended, _fail, context.services.timer, request.timeout_ms).result
        return _finish(context, request, response, waiting)
    if acks == 0:
        _close_on_error(response)
        return None
    return response


def _append_topic(
    context: RequestContext, request: ProduceRequest, topic: TopicProduceData, response: ProduceResponse,
    waiting: Waiting,
) -> list[PartitionProduceResponse]:  # fmt: skip
    acks, version = request.acks, context.api_version
    manager: ReplicaManager = context.services.replica_manager
    name = topic.name if version < 13 else context.services.metadata_cache.topic_name(topic.topic_id)
    partitions = topic.partition_data
    if len(partitions) > 1:
        partitions = list({wanted.index: wanted for wanted in partitions}.values())
    rows = []
    for wanted in partitions:
        partition: Partition | None = None
        try:
            if name is None:
                raise KafkaError(Errors.UNKNOWN_TOPIC_ID)
            records = wanted.records
            if records is None:
                raise InvalidProduce(Errors.INVALID_RECORD)  # Kafka never answers this one
            if name in INTERNAL_TOPICS:
                raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION)
            hosted = manager.topics.get(name)
            partition = hosted.get(wanted.index) if hosted is not None else None
            if partition is None:
                partition = manager.partition(name, wanted.index)
            if len(records) > ATTRIBUTES_LOW_BYTE and records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_FLAG:
                _check_transaction(request, partition, records)
            info = partition.append(records, acks, version)
        except KafkaError as found:
            error = _of_its_leader(manager, partition, found)
            row = _failed(partition, wanted.index, error)
            _name_records(row, error, version)
            if error.code == Errors.NOT_LEADER_OR_FOLLOWER and version >= 10:
                _name_leader(context, name or "", row, response)
            rows.append(row)
            continue
        if type(info) is AppendInfo:
            row = _written(wanted.index, info)
            if acks == -1 and partition.log.high_watermark <= info.last_offset:
                waiting.append((row, partition, info.last_offset + 1))
        else:
            assert not isinstance(info, AppendInfo)
            context.keep_frame()
            row = PartitionProduceResponse(index=wanted.index)
            waiting.append((row, partition, info))
        rows.append(row)
    return rows


def _of_its_leader(manager: ReplicaManager, partition: Partition | None, error: KafkaError) -> KafkaError:
    """The error, unless only the true leader can know: what seems to be missing may have been sent to another one, and
    producers take it for lost."""
    if error.code in OF_A_SEQUENCE and partition is not None and manager.may_be_deposed(partition):
        deposed = KafkaError(Errors.NOT_LEADER_OR_FOLLOWER)
        for why in getattr(error, "__notes__", ()):
            deposed.add_note(f"another broker may lead it, and {why}")
        return deposed
    return error


def _written(index: int, info: AppendInfo) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        base_offset=info.first_offset,
        log_append_time_ms=info.log_append_time,
        log_start_offset=info.log_start_offset,
    )


def _check_transaction(request: ProduceRequest, partition: Partition, records: memoryview) -> None:
    """A transactional batch must belong to a transaction that its coordinator knows, unless it is under way here."""
    if records[MAGIC_AT] != MAGIC_V2:
        return  # that bit means nothing in older formats
    if request.transactional_id is None:
        raise KafkaError(Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    header = read_header(records)
    if not partition.log.producers.has_ongoing_transaction(header.producer_id, header.producer_epoch):
        raise KafkaError(Errors.NOT_ENOUGH_REPLICAS, UNVERIFIED)


def _failed(partition: Partition | None, index: int, error: KafkaError) -> PartitionProduceResponse:
    for why in getattr(error, "__notes__", ()):  # Kafka tells clients the code only
        logger.info("%s refuses a batch, %s: %s", partition, error.code.name, why)
    row = PartitionProduceResponse(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message
    )
    if partition is not None and error.code not in WITHOUT_LOG_START and not isinstance(error, InvalidProduce):
        row.log_start_offset = partition.log.log_start_offset
    return row


def _name_records(row: PartitionProduceResponse, error: KafkaError, version: int) -> None:
    """Say which records were refused, where the answer has room for that: they may be very many."""
    if isinstance(error, RecordsRejected) and version >= RECORD_ERRORS_SINCE:
        row.record_errors = [
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text)
            for at, text in error.record_errors
        ]


def _name_leader(
    context: RequestContext, topic: str, row: PartitionProduceResponse, response: ProduceResponse
) -> None:
    """Tell a client that asked the wrong broker who leads, and where that broker is (KIP-951)."""
    cache = context.services.metadata_cache
    leader = cache.leader(topic, row.index)
    if leader is None:
        return
    row.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
    endpoint = cache.endpoint(leader[0], context.listener)
    if endpoint is not None and all(node.node_id != leader[0] for node in response.node_endpoints):
        response.node_endpoints.append(
            NodeEndpoint(node_id=leader[0], host=endpoint.host, port=endpoint.port, rack=endpoint.rack)
        )


async def _finish(
    context: RequestContext, request: ProduceRequest, response: ProduceResponse, waiting: Waiting
) -> ProduceResponse | None:
    """Wait for pending appends, then (acks=-1) for replication, each partition on its own, up to the timeout."""
    await asyncio.gather(*(_settle(context, request, row, partition, what) for row, partition, what in waiting))
    if request.acks == 0:
        _close_on_error(response)
        return None
    return response


async def _settle(
    context: RequestContext,
    request: ProduceRequest,
    row: PartitionProduceResponse,
    partition: Partition,
    what: Awaitable[AppendInfo] | int,
) -> None:
    try:
        if isinstance(what, int):
            committed = what
        else:
            info = await what
            committed = info.last_offset + 1
            row.base_offset, row.log_append_time_ms = info.first_offset, info.log_append_time
            row.log_start_offset = info.log_start_offset
        if request.acks == -1:
            await CommitWait(partition, committed, context.services.timer, request.timeout_ms).done()
    except KafkaError as found:
        error = _of_its_leader(context.services.replica_manager, partition, found)
        _fail(row, partition, error)
        _name_records(row, error, context.api_version)


def _fail(row: PartitionProduceResponse, partition: Partition, error: KafkaError) -> None:
    """Make the row say so."""
    failed = _failed(partition, row.index, error)
    for declared in failed.FIELDS:
        setattr(row, declared.name, getattr(failed, declared.name))


def _close_on_error(response: ProduceResponse) -> None:
    """acks=0: nobody reads an answer; a connection that closes is the only way to say that something failed."""
    for topic in response.responses:
        for row in topic.partition_responses:
            if row.error_code:
                code = Errors(row.error_code)
                raise CloseConnection(f"Produce with acks=0 to {topic.name}-{row.index} failed: {code.name}")


def error_response(request: ProduceRequest, error: KafkaError, version: int) -> ProduceResponse:
    """The error at every partition of the request."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=wanted.index, error_code=error.code, base_offset=-1, error_message=error.message
                    )
                    for wanted in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )

