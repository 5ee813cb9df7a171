"""Metadata (API key 3): brokers, topics, leaders; creates topics that a client names, if it may.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | an empty list asks for all topics; replicas that can't be reached are left out
1-3      | null asks for all, an empty list for none; 1 controller, rack, internal; 2 cluster id; 3 throttle time
4        | the client may forbid the creation of topics
5-7      | 5 offline replicas; 6 LISTENER_NOT_FOUND, throttles after answering; 7 leader epochs
8        | authorized operations on topics (KIP-430), up to 10 also on the cluster
9-12     | 9 flexible; 10 topic ids in the answer; 12 topics may be asked for by id (KIP-516), their name may be null
13       | an error code for the whole answer (KIP-1102)

A topic named twice is answered once. When any id is given, names are not looked at. Known topics come first. A topic
that is missing is made (auto.create.topics.enable) and answered with LEADER_NOT_AVAILABLE, without partitions.
Answers are joined from the metadata cache's pieces; more than a thousand partitions are put together in steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME, authorized_operations
from pybroker.broker.context import EncodedResponse
from pybroker.broker.metadata_cache import NOT_ASKED, MetadataCache, Topic, array_length, encode_topic
from pybroker.controller import topic_names
from pybroker.controller.topic_names import INTERNAL_TOPICS
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from pybroker.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

# Beyond this many partitions an answer is a task that lets others run.
LARGE = 1000
# Monitoring asks for everything all the time, so its steps are shorter than the rare ones of the controller.
STEP_SECONDS = 0.0003


def handle(context: RequestContext, request: MetadataRequest) -> EncodedResponse | Awaitable[EncodedResponse]:
    """See the module's text."""
    cache = context.services.metadata_cache
    if not cache.complete.is_set():
        return _when_complete(context, request, cache)
    version = context.api_version
    if request.topics is None or (version == 0 and not request.topics):
        return _everything(context, request, cache)
    wanted = _Wanted(context, request, cache)
    may_create = request.allow_auto_topic_creation and context.services.config.bool("auto.create.topics.enable")
    if wanted.missing and may_create:
        return _create_missing(context, request, wanted)
    for name in wanted.missing:
        error = Errors.UNKNOWN_TOPIC_OR_PARTITION if topic_names.is_valid(name) else Errors.INVALID_TOPIC_EXCEPTION
        wanted.refuse(error, name)
    if any(len(topic.partitions) > LARGE for topic in wanted.known):
        return _in_steps(context, request, wanted.known, wanted)
    asked = request.include_topic_authorized_operations
    pieces = [_piece(context, cache, topic, asked) for topic in wanted.known]
    return _answer(context, request, [*wanted.first, *pieces, *wanted.refused])


async def _when_complete(context: RequestContext, request: MetadataRequest, cache: MetadataCache) -> EncodedResponse:
    """A client that hears of no such topic may give up what it has for it."""
    await cache.complete.wait()
    answer = handle(context, request)
    return answer if isinstance(answer, EncodedResponse) else await answer


class _Wanted:
    """What a request names, sorted: topics that are known, names that are missing, encoded refusals. `first` are
    refusals that come before the known topics."""

    __slots__ = ("_context", "_operations", "first", "known", "missing", "refused")

    def __init__(self, context: RequestContext, request: MetadataRequest, cache: MetadataCache) -> None:
        self._context = context
        self._operations = request.include_topic_authorized_operations
        self.known: list[Topic] = []
        self.missing: list[str] = []
        self.first: list[bytes] = []
        self.refused: list[bytes] = []
        ids, names = _names(request, context.api_version)
        for topic_id in ids:
            name = cache.topic_name(topic_id)
            if name is not None and context.authorize("DESCRIBE", "TOPIC", name):
                self.known.append(cache.topics[name])
            else:
                # Whoever may not see a topic is not told that it exists.
                self.first.append(self._encode(Errors.UNKNOWN_TOPIC_ID, None, topic_id, NOT_ASKED))
        for name in names:
            if not context.authorize("DESCRIBE", "TOPIC", name):
                self.refused.append(self._encode(Errors.TOPIC_AUTHORIZATION_FAILED, name, ZERO_UUID, NOT_ASKED))
            elif (topic := cache.topics.get(name)) is not None:
                self.known.append(topic)
            else:
                self.missing.append(name)

    def refuse(self, error: Errors, name: str) -> None:
        """Answer a missing topic with an error."""
        operations = authorized_operations(self._context, "TOPIC", name) if self._operations else NOT_ASKED
        self.refused.append(self._encode(error, name, ZERO_UUID, operations))

    def _encode(self, error: Errors, name: str | None, topic_id: bytes, operations: int) -> bytes:
        described = MetadataResponseTopic(
            error_code=error,
            name=name,
            topic_id=topic_id,
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=operations,
        )
        return encode_topic(described, self._context.api_version)


def _names(request: MetadataRequest, version: int) -> tuple[Iterable[bytes], Iterable[str]]:
    """The ids asked for, or else the names; each once. Raises KafkaError where Kafka refuses the whole request."""
    topics = request.topics or ()
    if version < 10:
        # The fields of ids are not there yet.
        return (), dict.fromkeys([topic.name for topic in topics if topic.name is not None])
    if version < 12:
        for topic in topics:
            if topic.name is None:
                raise KafkaError(Errors.INVALID_REQUEST, f"Topic name can not be null for version {version}")
            if topic.topic_id != ZERO_UUID:
                raise KafkaError(
                    Errors.INVALID_REQUEST, f"Topic IDs are not supported in requests for version {version}"
                )
    ids = dict.fromkeys([topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID])
    if ids:
        return ids, ()
    if any(topic.name is None for topic in topics):
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR)
    return (), dict.fromkeys([topic.name for topic in topics if topic.name is not None])


def _piece(context: RequestContext, cache: MetadataCache, topic: Topic, asked: bool) -> bytes:
    operations = authorized_operations(context, "TOPIC", topic.name) if asked else NOT_ASKED
    return cache.piece(topic, context.api_version, context.listener, operations)


def _answer(context: RequestContext, request: MetadataRequest, pieces: list[bytes]) -> EncodedResponse:
    version = context.api_version
    cache = context.services.metadata_cache
    tail = b""
    if 8 <= version <= 10:
        operations = NOT_ASKED
        if request.include_cluster_authorized_operations:
            may_ask = context.authorize("DESCRIBE", "CLUSTER", CLUSTER_NAME)
            operations = authorized_operations(context, "CLUSTER", CLUSTER_NAME) if may_ask else 0
        tail = operations.to_bytes(4, "big", signed=True)
    if version >= 13:
        tail = b"\0\0"
    if version >= 9:
        tail += b"\0"
    count = array_length(len(pieces), version)
    return EncodedResponse([b"".join((cache.head(version, context.listener), count, *pieces, tail))])


def _everything(
    context: RequestContext, request: MetadataRequest, cache: MetadataCache
) -> EncodedResponse | Awaitable[EncodedResponse]:
    """All topics that the principal may see."""
    if cache.partition_count > LARGE:
        return _in_steps(context, request, list(cache.topics.values()), None)
    asked = request.include_topic_authorized_operations
    visible = [topic for topic in cache.topics.values() if context.authorize("DESCRIBE", "TOPIC", topic.name)]
    return _answer(context, request, [_piece(context, cache, topic, asked) for topic in visible])


async def _in_steps(
    context: RequestContext, request: MetadataRequest, topics: list[Topic], wanted: _Wanted | None
) -> EncodedResponse:
    cache = context.services.metadata_cache
    pieces: list[bytes] = []
    rest_at = perf_counter() + STEP_SECONDS
    for topic in topics:
        if perf_counter() >= rest_at:
            await asyncio.sleep(0)
            rest_at = perf_counter() + STEP_SECONDS
        if wanted is None and not context.authorize("DESCRIBE", "TOPIC", topic.name):
            continue
        asked = request.include_topic_authorized_operations
        if len(topic.partitions) > LARGE:
            operations = authorized_operations(context, "TOPIC", topic.name) if asked else NOT_ASKED
            await cache.prepare(topic, context.api_version, context.listener, operations)
        pieces.append(_piece(context, cache, topic, asked))
    if wanted is not None:
        pieces = [*wanted.first, *pieces, *wanted.refused]
    return _answer(context, request, pieces)


async def _create_missing(context: RequestContext, request: MetadataRequest, wanted: _Wanted) -> EncodedResponse:
    """Kafka answers when the topic is written, not when it has a leader."""
    allowed = wanted.missing
    if not context.authorize("CREATE", "CLUSTER", CLUSTER_NAME):
        allowed = [name for name in wanted.missing if context.authorize("CREATE", "TOPIC", name)]
    answers = await context.services.topics.auto_create(allowed)
    for name in wanted.missing:
        wanted.refuse(answers.get(name, Errors.TOPIC_AUTHORIZATION_FAILED), name)
    return await _in_steps(context, request, wanted.known, wanted)


def error_response(request: MetadataRequest, error: KafkaError, version: int) -> MetadataResponse:
    """The error at every topic named; no brokers, as Kafka has it."""
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=error.code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ],
        error_code=error.code,
    )
