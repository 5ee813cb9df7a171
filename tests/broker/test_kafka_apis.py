from __future__ import annotations

import importlib
import struct
import subprocess
import sys
import types
from typing import Any

import pytest

from pybroker.broker.context import CloseConnection, RequestContext
from pybroker.broker.kafka_apis import HANDLERS, Handler, KafkaApis
from pybroker.protocol import codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic


class Peer:
    """As much of a connection as KafkaApis touches."""

    client_bytes = b""
    client_id = ""
    context: RequestContext | None = None
    arrived = 0
    listener = types.SimpleNamespace(name="PLAINTEXT", security_protocol="PLAINTEXT")
    address = "10.0.0.1"

    def __init__(self) -> None:
        self.throttled: list[int] = []

    def set_client_id(self, raw: bytes) -> None:
        self.client_bytes, self.client_id = raw, raw.decode()

    def throttle(self, ms: int) -> None:
        self.throttled.append(ms)


def metadata_request(version: int) -> memoryview:
    tags = b"\0" if version in MetadataRequest.FLEXIBLE else b""
    header = struct.pack(">hhih", 3, version, 77, 2) + b"me" + tags
    return memoryview(header + codec.encode_bytes(MetadataRequest(topics=[]), version))


def install(monkeypatch: pytest.MonkeyPatch, **contents: Any) -> None:
    module = types.ModuleType("pybroker.broker.apis.metadata")
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, module.__name__, module)


# Versions that 4.3.1's schemas have and its brokers do not serve.
UNSTABLE = {22: 6}


@pytest.mark.parametrize("key", sorted(HANDLERS))
def test_every_version_of_both_kafkas_is_served(key: int) -> None:
    served = HANDLERS[key]
    messages = importlib.import_module(f"pybroker.protocol.messages.{served.module}")
    name = "".join(word.capitalize() for word in served.module.split("_"))
    for message in (getattr(messages, name + "Request"), getattr(messages, name + "Response")):
        lowest, highest = message.VERSIONS
        assert key == message.API_KEY
        assert (served.lowest, served.highest) == (lowest, min(highest, UNSTABLE.get(key, highest + 1) - 1))


def test_the_table_imports_neither_messages_nor_handlers() -> None:
    code = (
        "import sys, pybroker.broker.kafka_apis; "
        "print([m for m in sys.modules if '.messages.' in m or '.broker.apis.' in m])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_context_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        seen.append((context.api_key, context.api_version, context.correlation_id, context.client_id))
        seen.append((context.listener, context.client_address, context.principal, context.services))
        assert context.authorize("DESCRIBE", "TOPIC", "t")
        return MetadataResponse(throttle_time_ms=5, cluster_id="c")

    install(monkeypatch, handle=handle)
    services = object()
    apis, peer = KafkaApis(services), Peer()
    parts = apis.handle(peer, metadata_request(12))  # type: ignore[arg-type]
    assert isinstance(parts, list)
    raw = b"".join(parts)
    assert struct.unpack_from(">iiB", raw) == (len(raw) - 4, 77, 0)
    answer, end = codec.decode(MetadataResponse, 12, raw, 9)
    assert answer.cluster_id == "c" and end == len(raw)
    assert seen == [(3, 12, 77, "me"), ("PLAINTEXT", "10.0.0.1", "User:ANONYMOUS", services)]
    assert peer.throttled == [5]
    context = peer.context
    apis.handle(peer, metadata_request(12))  # type: ignore[arg-type]
    assert peer.context is context
    assert sum(apis.metrics[3].local_ns) == sum(apis.metrics[3].queue_ns) == 2


def test_a_large_body_is_not_copied_behind_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [MetadataResponseTopic(name="t" * 100) for _ in range(100)]
    install(monkeypatch, handle=lambda context, request: MetadataResponse(topics=topics))
    parts = KafkaApis(None).handle(Peer(), metadata_request(1))  # type: ignore[arg-type]
    assert isinstance(parts, list) and len(parts) == 2
    assert struct.unpack(">ii", parts[0]) == (4 + len(parts[1]), 77)


def test_a_module_says_itself_how_its_errors_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        raise KafkaError(Errors.INVALID_REQUEST)

    def error_response(request: MetadataRequest, error: KafkaError, version: int) -> MetadataResponse:
        return MetadataResponse(topics=[MetadataResponseTopic(name=f"v{version}", error_code=error.code)])

    install(monkeypatch, handle=handle, error_response=error_response)
    parts = KafkaApis(None).handle(Peer(), metadata_request(1))  # type: ignore[arg-type]
    assert isinstance(parts, list)
    answer, _ = codec.decode(MetadataResponse, 1, b"".join(parts), 8)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("v1", 42)]


def test_without_a_place_for_the_error_the_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        raise KafkaError(Errors.INVALID_REQUEST)

    install(monkeypatch, handle=handle)
    with pytest.raises(CloseConnection, match="METADATA failed without an answer: INVALID_REQUEST"):
        KafkaApis(None).handle(Peer(), metadata_request(1))  # type: ignore[arg-type]


def test_a_missing_module_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CloseConnection, match="NO_SUCH_API is not available"):
        KafkaApis(None, {3: Handler("no_such_api", 0, 12)}).handle(Peer(), metadata_request(1))  # type: ignore[arg-type]
    assert "Cannot serve no_such_api" in caplog.text
