"""Framing and headers, case by case as Apache Kafka 3.9.2 answered them."""

from __future__ import annotations

import asyncio
import struct

import pytest

from pybroker.broker.kafka_apis import HANDLERS
from pybroker.protocol import codec
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from pybroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.broker.network.harness import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    Harness,
    api_versions_frame,
    fetch_frame,
    frame,
    metadata_frame,
)

EMPTY = codec.encode_bytes(MetadataRequest(topics=[]), 1)


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(key: int, version: int, client_id: bytes | None = b"probe") -> bytes:
    return struct.pack(">hhih", key, version, 7, -1 if client_id is None else len(client_id)) + (client_id or b"")


CLOSED = {
    "size negative": (b"\xff\xff\xff\xff", "Invalid receive (size = -1)"),
    "size -2147483648": (b"\x80\x00\x00\x00", "Invalid receive (size = -2147483648)"),
    "size above socket.request.max.bytes": (
        struct.pack(">i", 104857601),
        "Invalid receive (size = 104857601 larger than 104857600)",
    ),
    "garbage (HTTP GET)": (b"GET / HTTP/1.1\r\n\r\n", "Invalid receive (size = 1195725856 larger than 104857600)"),
    "TLS ClientHello": (bytes.fromhex("160301020001"), "Invalid receive (size = 369295618 larger than 104857600)"),
    "size 0": (struct.pack(">i", 0), "Our best guess of the apiKey is: -1"),
    "size 1": (sized(b"\0"), "Our best guess of the apiKey is: -1"),
    "size 4: key and version only": (sized(struct.pack(">hh", 3, 1)), "Our best guess of the apiKey is: 3"),
    "header cut after the correlation id": (sized(struct.pack(">hhi", 3, 1, 7)), "best guess of the apiKey is: 3"),
    "unknown api key": (sized(header(999, 0)), "Our best guess of the apiKey is: 999"),
    "api key -1": (sized(header(-1, 0)), "Our best guess of the apiKey is: -1"),
    "controller-only api key": (sized(header(52, 0)), "Our best guess of the apiKey is: 52"),
    "Produce version 99": (sized(header(PRODUCE, 99)), "Our best guess of the apiKey is: 0"),
    "Fetch version 99": (sized(header(FETCH, 99)), "Our best guess of the apiKey is: 1"),
    "Metadata version -1": (sized(header(METADATA, -1)), "Our best guess of the apiKey is: 3"),
    "ApiVersions v99, header v1": (sized(header(API_VERSIONS, 99)), "Our best guess of the apiKey is: 18"),
    "ApiVersions v3, body cut": (
        sized(header(API_VERSIONS, 3) + b"\0"),
        "Error getting request for apiKey: API_VERSIONS, apiVersion: 3",
    ),
    "client id length beyond the frame": (
        sized(struct.pack(">hhih", 3, 1, 7, 1000) + EMPTY),
        "Our best guess of the apiKey is: 3",
    ),
    "body cut": (sized(header(METADATA, 1) + struct.pack(">i", 3)), "apiKey: METADATA, apiVersion: 1"),
    "array length 2147483647": (
        sized(header(METADATA, 1) + struct.pack(">i", 2**31 - 1)),
        "apiKey: METADATA, apiVersion: 1",
    ),
    "varint of 6 bytes in the header": (
        sized(header(METADATA, 12) + b"\xff\xff\xff\xff\xff\x01"),
        "Our best guess of the apiKey is: 3",
    ),
    "tag beyond the header": (sized(header(METADATA, 12) + b"\x01\x00\x7f"), "Our best guess of the apiKey is: 3"),
}


@pytest.mark.parametrize("name", CLOSED)
async def test_closed_with_one_line_and_the_others_are_unharmed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent, said = CLOSED[name]
    async with Harness(monkeypatch) as harness:
        witness, client = await harness.connect(), await harness.connect()
        assert await witness.call(metadata_frame(1))
        client.send(sent)
        assert await client.is_closed()
        assert len(caplog.records) == 1 and said in caplog.text
        assert await witness.call(metadata_frame(2))


async def test_what_was_asked_before_the_bad_frame_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        client.send(metadata_frame(1) + fetch_frame(2) + sized(header(999, 0)) + metadata_frame(3))
        assert [await client.correlation_id() for _ in range(2)] == [1, 2]
        assert await client.is_closed()
        assert len(harness.contexts) == 2


@pytest.mark.parametrize(
    ("raw", "seen"),
    [(None, None), (b"", ""), (b"\xff\xfe\x80", "\ufffd\ufffd\ufffd"), ("ä".encode(), "ä")],
)
async def test_client_ids(raw: bytes | None, seen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        for correlation_id, client_id in enumerate((b"first", raw, b"last")):
            await client.call(frame(METADATA, 1, correlation_id, EMPTY, client_id))
        assert [context[3] for context in harness.contexts] == ["first", seen, "last"]


async def test_a_negative_client_id_length_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        await client.call(sized(struct.pack(">hhih", METADATA, 1, 7, -5) + EMPTY))
        assert harness.contexts == [(METADATA, 1, 7, None)]


async def test_bytes_behind_the_body_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        client.send(frame(METADATA, 1, 1, EMPTY + b"extra") + metadata_frame(2))
        assert [await client.correlation_id() for _ in range(2)] == [1, 2]


async def test_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        for byte in metadata_frame(9):
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.correlation_id() == 9


async def test_truncated_frame_then_half_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        client.send(struct.pack(">i", 50) + b"ab")
        client.writer.write_eof()
        assert await client.is_closed() and not caplog.records


async def test_unknown_tags_in_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    body = codec.encode_bytes(MetadataRequest(topics=[]), 12)
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        tags = b"\x02\x05\x03abc\x86\x01\x00"
        answer = await client.call(sized(header(METADATA, 12) + tags + body))
        assert answer[:5] == struct.pack(">iB", 7, 0)
        codec.decode(MetadataResponse, 12, answer, 5)


@pytest.mark.parametrize(("version", "tags"), [(99, b"\0whatever"), (5, b"\x01\x00\x01x"), (-1, b"")])
async def test_an_api_versions_version_that_is_not_served(
    version: int, tags: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        answer = await client.call(sized(header(API_VERSIONS, version) + tags))
        assert answer == struct.pack(">ihihhh", 7, 35, 1, 18, 0, 4)
        assert await client.call(api_versions_frame())


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_says_what_the_table_says(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ApiVersionsRequest(client_software_name="pytest", client_software_version="1.0-x")
    tag = b"\0" if version >= 3 else b""
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        raw = await client.call(sized(header(API_VERSIONS, version) + tag + codec.encode_bytes(request, version)))
        answer, end = codec.decode(ApiVersionsResponse, version, raw, 4)  # never a tag byte in this header
        assert end == len(raw) and answer.error_code == 0
        assert {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys} == {
            key: (served.lowest, served.highest) for key, served in HANDLERS.items()
        }
        assert answer.finalized_features_epoch == (0 if version >= 3 else -1)
        assert not answer.supported_features and not answer.finalized_features


@pytest.mark.parametrize(("name", "version"), [("bad name!", "1"), ("", "1"), ("ok", ""), ("-x", "1"), ("x", "1.")])
async def test_invalid_software_names(name: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = codec.encode_bytes(ApiVersionsRequest(client_software_name=name, client_software_version=version), 3)
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        raw = await client.call(sized(header(API_VERSIONS, 3) + b"\0" + body))
        answer, _ = codec.decode(ApiVersionsResponse, 3, raw, 4)
        assert answer.error_code == Errors.INVALID_REQUEST and not answer.api_keys
        assert await client.call(api_versions_frame())
