"""From a request's bytes to its answer's: header, version, decoding, handler, errors, encoding.

HANDLERS is the one table of what is served; ApiVersions is computed from it. A handler module and its messages are
imported at the first request for them. Each (API, version) in use is a ServedVersion holding compiled functions, found
with one dictionary look-up by the first four bytes of the header.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import struct
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.broker.context import CloseConnection, EncodedResponse, RequestContext
from pybroker.protocol import codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.later import Later

if TYPE_CHECKING:
    from pybroker.broker.network.connection import Connection

logger = logging.getLogger(__name__)

API_VERSIONS = 18
# ControlledShutdown 0, the one request whose header ends with the correlation id.
_BARE_HEADER = 7 << 16


class Handler(NamedTuple):
    """A module of broker/apis (and of protocol/messages) and the versions it serves, both ends included. What is
    `by_controller` only a controller does, and with the metadata store."""

    module: str
    lowest: int
    highest: int
    by_controller: bool = False


HANDLERS: dict[int, Handler] = {
    0: Handler("produce", 0, 13),
    1: Handler("fetch", 0, 18),
    2: Handler("list_offsets", 0, 11),
    3: Handler("metadata", 0, 13),
    4: Handler("leader_and_isr", 0, 7),
    5: Handler("stop_replica", 0, 4),
    6: Handler("update_metadata", 0, 8),
    7: Handler("controlled_shutdown", 0, 3, by_controller=True),
    8: Handler("offset_commit", 0, 10),
    9: Handler("offset_fetch", 0, 10),
    10: Handler("find_coordinator", 0, 6),
    11: Handler("join_group", 0, 9),
    12: Handler("heartbeat", 0, 4),
    13: Handler("leave_group", 0, 5),
    14: Handler("sync_group", 0, 5),
    15: Handler("describe_groups", 0, 6),
    16: Handler("list_groups", 0, 5),
    17: Handler("sasl_handshake", 0, 1),
    18: Handler("api_versions", 0, 4),
    19: Handler("create_topics", 0, 7, by_controller=True),
    20: Handler("delete_topics", 0, 6, by_controller=True),
    21: Handler("delete_records", 0, 2),
    22: Handler("init_producer_id", 0, 5),  # 6 is not served by any release yet (KIP-939)
    23: Handler("offset_for_leader_epoch", 0, 4),
    29: Handler("describe_acls", 0, 3),
    30: Handler("create_acls", 0, 3),
    31: Handler("delete_acls", 0, 3),
    32: Handler("describe_configs", 0, 4),
    33: Handler("alter_configs", 0, 2),
    34: Handler("alter_replica_log_dirs", 0, 2),
    35: Handler("describe_log_dirs", 0, 5),
    36: Handler("sasl_authenticate", 0, 2),
    37: Handler("create_partitions", 0, 3, by_controller=True),
    42: Handler("delete_groups", 0, 2),
    43: Handler("elect_leaders", 0, 2, by_controller=True),
    44: Handler("incremental_alter_configs", 0, 1),
    45: Handler("alter_partition_reassignments", 0, 1, by_controller=True),
    46: Handler("list_partition_reassignments", 0, 0),
    47: Handler("offset_delete", 0, 0),
    56: Handler("alter_partition", 0, 3, by_controller=True),
    60: Handler("describe_cluster", 0, 2),
    61: Handler("describe_producers", 0, 0),
    67: Handler("allocate_producer_ids", 0, 0, by_controller=True),
    68: Handler("consumer_group_heartbeat", 0, 1),
    69: Handler("consumer_group_describe", 0, 1),
    74: Handler("list_config_resources", 0, 1),
    75: Handler("describe_topic_partitions", 0, 0),
}

# API key (16 bits) and version (16 bits) as one number, correlation id, length of the client id (never compact).
_HEADER = struct.Struct(">Iih")
_KEY_AND_VERSION = struct.Struct(">hh")
_ANSWER_V0 = struct.Struct(">ii")  # size, correlation id
_ANSWER_V1 = struct.Struct(">iix")  # the same and an empty section of tagged fields
_JOIN_BELOW = 4096  # copying a short body behind its header is cheaper than a part of its own
_UNSUPPORTED = struct.Struct(">iihihhh")  # size, correlation id, error, one API: key, lowest, highest

# What compiled decoders raise on bytes that are not the message they claim to be.
_MALFORMED = (struct.error, IndexError, ValueError, OverflowError, MemoryError)

_BUCKETS = 64  # times in ns, by bit length


class ApiMetrics:
    """Plain numbers of one API key, read when metrics are asked for. Bucket i counts times of bit length i, in ns."""

    __slots__ = ("errors", "local_ns", "queue_ns", "remote_ns", "throttled")

    def __init__(self) -> None:
        self.queue_ns = [0] * _BUCKETS  # from the bytes' arrival to the start
        self.local_ns = [0] * _BUCKETS  # decoding, handler, encoding
        self.remote_ns = [0] * _BUCKETS  # from the handler's return to the answer of a request that waited
        self.errors = 0
        self.throttled = 0


class ServedVersion:
    """One (API, version) that has been asked for: everything a request needs, looked up once."""

    __slots__ = (
        "api_key",
        "decode",
        "encode",
        "error_hook",
        "flexible",
        "handle",
        "metrics",
        "module",
        "prefix",
        "requests",
        "response_class",
        "throttles",
        "version",
    )

    def __init__(self, handler: Handler, api_key: int, version: int, metrics: ApiMetrics) -> None:
        name = "".join(word.capitalize() for word in handler.module.split("_"))
        messages = importlib.import_module(f"pybroker.protocol.messages.{handler.module}")
        module = importlib.import_module(f"pybroker.broker.apis.{handler.module}")
        request_class = getattr(messages, name + "Request")
        self.api_key = api_key
        self.version = version
        self.module = handler.module
        self.metrics = metrics
        self.requests = 0
        self.response_class: Any = getattr(messages, name + "Response")
        self.decode = codec.decoder(request_class, version)
        if api_key << 16 | version == _BARE_HEADER:
            decode = self.decode
            self.decode = lambda frame, position: decode(frame, 8)
        self.encode = codec.encoder(self.response_class, version)
        self.handle: Callable[[RequestContext, Any], Any] = (
            _in_office(module.handle) if handler.by_controller else module.handle
        )
        self.error_hook: Callable[[Any, KafkaError, int], Any] | None = getattr(module, "error_response", None)
        self.flexible = version in request_class.FLEXIBLE
        self.throttles = hasattr(self.response_class, "throttle_time_ms")
        # A client that asks for versions does not know yet what this broker speaks: KIP-511.
        tagged = version in self.response_class.FLEXIBLE and api_key != API_VERSIONS
        self.prefix = _ANSWER_V1 if tagged else _ANSWER_V0

    def error_response(self, request: Any, error: KafkaError) -> Any:
        """The response that carries `error` in this API's own shape; None if it has no place for it."""
        if getattr(request, "acks", 1) == 0:
            return None  # nobody reads an answer
        if self.error_hook is not None:
            return self.error_hook(request, error, self.version)
        fields = {declared.name for declared in self.response_class.FIELDS if self.version in declared.versions}
        if "error_code" not in fields:
            return None
        values: dict[str, Any] = {"error_code": int(error.code)}
        if "error_message" in fields:
            values["error_message"] = error.message
        return self.response_class(**values)


def _in_office(handle: Callable[[RequestContext, Any], Any]) -> Callable[[RequestContext, Any], Any]:
    """Without the store this broker can't do a controller's work, and another one may be the controller by now: whoever
    asks has to look for it again. Kafka's brokers would repeat their requests here for any other answer."""

    def handle_in_office(context: RequestContext, request: Any) -> Any:
        if context.services.store_watch.is_away:
            raise KafkaError(Errors.NOT_CONTROLLER)
        return handle(context, request)

    return handle_in_office


class PendingAnswer:
    """A request whose handler returned an awaitable: it keeps its place in the order of its connection's answers.

    When `ready`, `parts` is the answer, None for none; `failure` says why the connection has to be closed instead.
    """

    __slots__ = (
        "_apis",
        "_future",
        "_on_ready",
        "_returned_at",
        "connection",
        "context",
        "failure",
        "kept_bytes",
        "parts",
        "ready",
        "request",
        "served",
    )

    def __init__(
        self, apis: KafkaApis, context: RequestContext, served: ServedVersion, request: Any, response: Awaitable[Any]
    ) -> None:
        assert context.connection is not None
        self.connection = context.connection
        self.context = context
        self.served = served
        self.request = request
        self.parts: list[Any] | None = None
        self.failure: str | None = None
        self.ready = False
        self.kept_bytes = 0  # of the receive buffer that went with this request
        self._apis = apis
        self._returned_at = perf_counter_ns()
        self._future: Later[Any] | asyncio.Future[Any] = (
            response if isinstance(response, Later) else asyncio.ensure_future(response)
        )
        self._on_ready: Callable[[PendingAnswer], None] | None = None

    def begin(self, on_ready: Callable[[PendingAnswer], None]) -> None:
        """Have `on_ready` called, on the loop, when the answer is there."""
        self._on_ready = on_ready
        if isinstance(self._future, Later):
            self._future.then(self._finished)
        else:
            self._future.add_done_callback(self._finished)

    def _finished(self, future: Later[Any] | asyncio.Future[Any]) -> None:
        started = perf_counter_ns()
        metrics = self.served.metrics
        metrics.remote_ns[(started - self._returned_at).bit_length()] += 1
        try:
            self.parts = self._apis.finish(self, future)
        except CloseConnection as error:
            self.failure = error.reason
        metrics.local_ns[(perf_counter_ns() - started + self._returned_at - self.context.received_at).bit_length()] += 1
        self.ready = True
        if self._on_ready is not None:
            self._on_ready(self)


class KafkaApis:
    """Answers requests. One object per broker; `services` is what handlers find in their context."""

    def __init__(self, services: Any, handlers: dict[int, Handler] | None = None) -> None:
        self._services = services
        self._handlers = HANDLERS if handlers is None else handlers
        self._served: dict[int, ServedVersion] = {}
        self.metrics: dict[int, ApiMetrics] = {key: ApiMetrics() for key in self._handlers}

    def handle(self, connection: Connection, frame: memoryview) -> list[Any] | PendingAnswer | None:
        """Run one request. `frame` is a whole frame without its size field.

        Returns the answer's parts (its size field included), None where there is no answer (acks=0), or a
        PendingAnswer. Raises CloseConnection.
        """
        started = perf_counter_ns()
        try:
            word, correlation_id, id_length = _HEADER.unpack_from(frame)
        except struct.error:
            raise _bad_header(frame) from None
        served = self._served.get(word)
        if served is None:
            served = self._load(word)
            if served is None:
                return _refuse(frame, correlation_id, id_length)
        position = 10
        if id_length > 0:
            position += id_length
            if frame[10:position] != connection.client_bytes:
                connection.set_client_id(_client_id(frame, id_length))
        if served.flexible:
            position = _skip_tags(frame, position)

        context = connection.context
        if context is None:
            context = connection.context = RequestContext(connection, self._services)
        context.api_key = served.api_key
        context.api_version = served.version
        context.correlation_id = correlation_id
        context.client_id = connection.client_id if id_length > 0 else "" if id_length == 0 else None
        context.received_at = started
        try:
            request = served.decode(frame, position)[0]
        except _MALFORMED as error:
            raise CloseConnection(
                f"Error getting request for apiKey: {served.module.upper()}, apiVersion: {served.version}: {error}"
            ) from None
        served.requests += 1
        metrics = served.metrics
        metrics.queue_ns[(started - connection.arrived).bit_length()] += 1
        try:
            response = served.handle(context, request)
            if response is None:
                parts = None
            elif type(response) is served.response_class or type(response) is EncodedResponse:
                parts = self._encode(context, served, response)
            else:
                connection.context = None  # this one belongs to the waiting request now
                return PendingAnswer(self, context, served, request, response)
        except CloseConnection:
            raise
        except Exception as error:
            parts = self._encode_error(context, served, request, error)
        metrics.local_ns[(perf_counter_ns() - started).bit_length()] += 1
        return parts

    def finish(self, pending: PendingAnswer, future: Later[Any] | asyncio.Future[Any]) -> list[Any] | None:
        """The parts of the answer that a finished awaitable stands for. Raises CloseConnection."""
        context, served = pending.context, pending.served
        try:
            response = future.result()
            return None if response is None else self._encode(context, served, response)
        except asyncio.CancelledError:
            raise CloseConnection(f"{served.module.upper()} was given up") from None
        except CloseConnection:
            raise
        except Exception as error:
            return self._encode_error(context, served, pending.request, error)

    def _encode(self, context: RequestContext, served: ServedVersion, response: Any) -> list[Any]:
        parts: list[Any] = [*response.parts] if type(response) is EncodedResponse else served.encode(response)
        prefix = served.prefix
        if len(parts) == 1 and type(body := parts[0]) is bytes and len(body) < _JOIN_BELOW:
            parts[0] = prefix.pack(len(body) + prefix.size - 4, context.correlation_id) + body
        else:
            parts.insert(0, prefix.pack(sum(map(len, parts)) + prefix.size - 4, context.correlation_id))
        if served.throttles and response.throttle_time_ms > 0 and context.connection is not None:
            served.metrics.throttled += 1
            context.connection.throttle(response.throttle_time_ms)
        return parts

    def _encode_error(
        self, context: RequestContext, served: ServedVersion, request: Any, error: Exception
    ) -> list[Any]:
        """The answer that carries a handler's error; what isn't a KafkaError is a fault of ours and is logged."""
        served.metrics.errors += 1
        if not isinstance(error, KafkaError):
            logger.error(
                "Unexpected error handling %s v%d from %s: %s: %s",
                served.module, served.version, context.client_address, type(error).__name__, error,
                exc_info=error if logger.isEnabledFor(logging.DEBUG) else None,
            )  # fmt: skip
            error = KafkaError(Errors.UNKNOWN_SERVER_ERROR)
        response = served.error_response(request, error)
        if response is None:
            raise CloseConnection(f"{served.module.upper()} failed without an answer: {error.code.name}")
        return self._encode(context, served, response)

    def _load(self, word: int) -> ServedVersion | None:
        """The ServedVersion of a header's first four bytes, made now; None if that is not served."""
        key, version = word >> 16, word & 0xFFFF
        handler = self._handlers.get(key)
        if handler is None or not handler.lowest <= version <= handler.highest:
            return None
        try:
            served = self._served[word] = ServedVersion(handler, key, version, self.metrics[key])
        except (ImportError, AttributeError) as error:
            logger.error("Cannot serve %s v%d: %s", handler.module, version, error)
            raise CloseConnection(f"{handler.module.upper()} is not available") from error
        return served


def _refuse(frame: memoryview, correlation_id: int, id_length: int) -> list[Any]:
    """The answer to a version that is not served: only ApiVersions has one (KIP-511), in version 0 with its own range.

    Its header must still parse, as the newest kind; below version 0 as the oldest.
    """
    api_key, version = _KEY_AND_VERSION.unpack_from(frame)
    if api_key != API_VERSIONS:
        raise _bad_header(frame)
    position = 10 + len(_client_id(frame, id_length)) if id_length > 0 else 10
    if version >= 0:
        _skip_tags(frame, position)
    served = HANDLERS[API_VERSIONS]
    return [
        _UNSUPPORTED.pack(
            16, correlation_id, Errors.UNSUPPORTED_VERSION, 1, API_VERSIONS, served.lowest, served.highest
        )
    ]


def _bad_header(frame: memoryview) -> CloseConnection:
    api_key = int.from_bytes(frame[:2], "big", signed=True) if len(frame) >= 2 else -1
    return CloseConnection(f"Error parsing request header. Our best guess of the apiKey is: {api_key}")


def _client_id(frame: memoryview, length: int) -> bytes:
    if frame[:4] == _BARE_HEADER.to_bytes(4, "big"):
        return b""
    if 10 + length > len(frame):
        raise _bad_header(frame)
    return bytes(frame[10 : 10 + length])


def _skip_tags(frame: memoryview, position: int) -> int:
    """The position behind a header's section of tagged fields; a header has none that concern us."""
    try:
        if frame[position] == 0:
            return position + 1
        count, position = _unsigned_varint(frame, position)
        for _ in range(count):
            _, position = _unsigned_varint(frame, position)
            size, position = _unsigned_varint(frame, position)
            position += size
            if position > len(frame):
                raise _bad_header(frame)
        return position
    except IndexError:
        raise _bad_header(frame) from None


def _unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise _bad_header(frame)
