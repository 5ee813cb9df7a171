"""Fetch (API key 1).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-1      | answered in message format 0: newer records are converted down; 1 brings throttle time
2-3      | answered in message format 1; 3 brings max_bytes for the whole answer
4-6      | message format 2, isolation level and aborted transactions; 5 log start offsets
7-11     | fetch sessions (KIP-227); 9 current leader epoch (KIP-320); 11 rack and preferred replica (KIP-392)
12       | flexible; last fetched epoch and diverging epochs (KIP-595)
13-18    | topics by id (KIP-516); 15 replica state; 16 node endpoints (KIP-951); 17 directory id; 18 high watermark

Records are slices of the segment file, sent by sendfile. At least one batch comes whole, however small the limits
(KIP-74), but for versions 0-2. A fetch with too little to answer waits: see replication.fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from pybroker.broker.cold import read_cold
from pybroker.broker.context import CloseConnection
from pybroker.broker.conversion import ConvertedRecords
from pybroker.broker.fetch_sessions import FetchSession, SessionlessFetch
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.later import Later
from pybroker.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from pybroker.protocol.records.down_convert import ConversionFailed, DownConversion
from pybroker.replication.fetch import Ask, FetchParameters, Round, WaitingFetch
from pybroker.storage.files import FileSlice, WouldBlock

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext
    from pybroker.broker.services import Services

MAX_INT = 2**31 - 1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CONVERTED_BELOW = 4
Fetching = SessionlessFetch | FetchSession


def handle(context: RequestContext, request: FetchRequest) -> FetchResponse | Awaitable[FetchResponse]:
    """Read what the request asks for, or wait for it; throttling asks for its share before (none yet)."""
    services: Services = context.services
    version = context.api_version
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return error_response(request, KafkaError(Errors.UNKNOWN_SERVER_ERROR), version)
    try:
        fetching = services.fetch_sessions.open(request, version, services.metadata_cache.topic_name)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    parameters = _parameters(services, request, version)
    try:
        first = services.partition_reader.read(fetching.to_read(), parameters, fetching)
    except WouldBlock as cold:
        return _read_cold(context, fetching, parameters, cold)
    if (
        parameters.max_wait_ms <= 0
        or first.bytes >= parameters.min_bytes
        or first.urgent
        or (isinstance(fetching, SessionlessFetch) and not fetching.asks)
    ):
        return _answer(context, fetching, first)
    first.release()
    return _wait(context, fetching, first, parameters)


def _parameters(services: Services, request: FetchRequest, version: int) -> FetchParameters:
    limit = request.max_bytes if version >= 3 else MAX_INT
    replica_id = request.replica_id if version < 15 else request.replica_state.replica_id
    if replica_id < 0:
        limit = min(limit, services.fetch_max_bytes)
    return FetchParameters(
        replica_id=replica_id,
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, limit),
        max_bytes=limit,
        isolation=request.isolation_level,
        hard_limit=version <= 2,
        with_epochs=version >= 12,
        any_replica=version >= 11,
        rack=request.rack_id,
    )


def _wait(
    context: RequestContext, fetching: Fetching, first: Round, parameters: FetchParameters
) -> Awaitable[FetchResponse]:
    services: Services = context.services
    parked = _Parked(context, fetching, parameters)
    waiting = WaitingFetch(asyncio.get_running_loop(), services.timer, first, parameters, parked.read)
    fetching.waiting = waiting
    waiting.result.then(parked.read_again)
    return parked.answer


class _Parked:
    """A Fetch that waits for more. It is answered in the call that finds enough, which a follower waits for."""

    __slots__ = ("_context", "_fetching", "_parameters", "answer")

    def __init__(self, context: RequestContext, fetching: Fetching, parameters: FetchParameters) -> None:
        self.answer: Later[FetchResponse] = Later()
        self._context = context
        self._fetching = fetching
        self._parameters = parameters

    def read(self) -> Round:
        reader = self._context.services.partition_reader
        return reader.read(self._fetching.to_read(), self._parameters, self._fetching)

    def read_again(self, found: Later[Round | WouldBlock]) -> None:
        try:
            outcome = found.result()
            if isinstance(outcome, WouldBlock):
                self._answer_later(_read_cold(self._context, self._fetching, self._parameters, outcome))
                return
            answer = _answer(self._context, self._fetching, outcome)
            if not isinstance(answer, FetchResponse):
                self._answer_later(answer)
                return
        except Exception as error:
            self.answer.set_exception(error)
            return
        self.answer.set_result(answer)

    def _answer_later(self, coming: Awaitable[FetchResponse]) -> None:
        asyncio.ensure_future(coming).add_done_callback(self._came)

    def _came(self, done: asyncio.Future[FetchResponse]) -> None:
        if done.cancelled():
            self.answer.set_exception(CloseConnection("FETCH was given up"))
        elif error := done.exception():
            self.answer.set_exception(error)  # type: ignore[arg-type]
        else:
            self.answer.set_result(done.result())


async def _read_cold(
    context: RequestContext, fetching: Fetching, parameters: FetchParameters, cold: WouldBlock
) -> FetchResponse:
    services: Services = context.services

    def read(blocking: bool) -> Round:
        return services.partition_reader.read(fetching.to_read(), parameters, fetching, blocking=blocking)

    return await _answer_later(context, fetching, await read_cold(services.reader_threads, cold, read))


def _answer(
    context: RequestContext, fetching: Fetching, found: Round
) -> FetchResponse | Awaitable[FetchResponse]:
    if context.api_version < CONVERTED_BELOW and found.bytes:
        return _answer_later(context, fetching, found)
    return _respond(context, fetching, found)


async def _answer_later(context: RequestContext, fetching: Fetching, found: Round) -> FetchResponse:
    """The answer once it is known how long its converted records are."""
    if context.api_version < CONVERTED_BELOW:
        try:
            for ask, data in found.answers:
                if data.records:
                    data.records = await _convert(context, ask, data)
        except BaseException:
            found.release()
            fetching.done()
            raise
    return _respond(context, fetching, found)


def _respond(context: RequestContext, fetching: Fetching, found: Round) -> FetchResponse:
    chosen = fetching.answer(found.answers)
    fetching.done()
    if found.throttled_bytes:
        context.services.replication_quotas.leader.record(found.throttled_bytes)
    version = context.api_version
    response = FetchResponse(session_id=fetching.session_id)
    topic: FetchableTopicResponse | None = None
    for ask, data in chosen:
        if topic is None or topic.topic != ask.topic or topic.topic_id != ask.topic_id:
            topic = FetchableTopicResponse(topic=ask.topic, topic_id=ask.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
        if data.error_code and version >= 12:
            _name_leader(context, ask, data, response)
    return response


async def _convert(context: RequestContext, ask: Ask, data: PartitionData) -> ConvertedRecords | bytes:
    """Message format 0 for Fetch 0-1, 1 for 2-3: of a slice the first batch now and the others when they are sent.
    Sets the error where that can't be."""
    services: Services = context.services
    raw: Any = data.records
    version, partition = context.api_version, ask.watching
    conversion = DownConversion(
        raw.read_at if isinstance(raw, FileSlice) else lambda at, length: raw[at : at + length],
        len(raw),
        0 if version < 2 else 1,
        ask.offset,
        allowed=partition is None or partition.log.config.message_downconversion_enable,
    )
    try:
        await services.workshop.do(conversion.begin())
        if isinstance(raw, FileSlice) and conversion.length:
            return ConvertedRecords(raw, conversion, services.workshop)
        converted = b""
        while conversion.left:
            converted += await services.workshop.do(conversion.chunk())
    except ConversionFailed as error:
        raise CloseConnection(f"{ask.topic}-{ask.index} can't be converted for Fetch {version}: {error}") from error
    except KafkaError as error:
        converted = b""
        data.error_code = error.code
        data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
    if isinstance(raw, FileSlice):
        raw.release()
    return converted


def _name_leader(context: RequestContext, ask: Ask, data: PartitionData, response: FetchResponse) -> None:
    """Tell a client that asked the wrong broker, or in a wrong epoch, who leads (KIP-951 from 16 on)."""
    if data.error_code not in (Errors.NOT_LEADER_OR_FOLLOWER, Errors.FENCED_LEADER_EPOCH):
        return
    cache = context.services.metadata_cache
    leader = cache.leader(ask.topic, ask.index)
    if leader is None:
        return
    data.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
    endpoint = cache.endpoint(leader[0], context.listener)
    if context.api_version >= 16 and endpoint is not None:
        node = NodeEndpoint(node_id=leader[0], host=endpoint.host, port=endpoint.port, rack=endpoint.rack)
        if all(known.node_id != node.node_id for known in response.node_endpoints):
            response.node_endpoints.append(node)


def error_response(request: FetchRequest, error: KafkaError, version: int) -> FetchResponse:
    """The error at the top, from version 7 on, and before 13 at every partition that was asked for; with records that
    are empty, not null, which librdkafka would take for a broken answer."""
    response: Any = FetchResponse(error_code=error.code)
    for topic in request.topics if version < 13 else ():
        response.responses.append(
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(
                        partition_index=wanted.partition, error_code=error.code, high_watermark=-1, records=b""
                    )
                    for wanted in topic.partitions
                ],
            )
        )
    result: FetchResponse = response
    return result
