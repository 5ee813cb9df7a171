"""Frames and headers: sizes, cuts, unknown APIs and versions, odd client ids, pipelining."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from tests.support.probe import Case, ProbeClient, Step, calls
from tests.support.schema import decode_response, encode_request, request_body, request_header


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def bare(key: int, version: int, behind: bytes = b"") -> bytes:
    """A frame with a null client id."""
    return framed(struct.pack(">hhih", key, version, 7, -1) + behind)


def sends(data: bytes) -> Any:
    """A run that sends raw bytes and writes down the size and beginning of what comes back."""

    def run(client: ProbeClient) -> str:
        client.write(data)
        got = client.receive()
        return f"answer {len(got)} bytes: {got[:40].hex()}"

    return run


def sends_for_size(data: bytes) -> Any:
    def run(client: ProbeClient) -> str:
        client.write(data)
        return f"answer {len(client.receive())} bytes"

    return run


METADATA = encode_request("Metadata", 1, {"Topics": []}, 5)
METADATA_HEADER = request_header("Metadata", 1, 7)


def half_closed(client: ProbeClient) -> str:
    client.write(struct.pack(">i", 50) + b"\0\3")
    client.sock.shutdown(socket.SHUT_WR)
    return client.receive().hex()


def byte_by_byte(client: ProbeClient) -> str:
    for byte in framed(METADATA):
        client.write(bytes([byte]))
        time.sleep(0.002)
    return f"answer {len(client.receive())} bytes"


def api_versions(version: int, behind: bytes = b"") -> Any:
    """An ApiVersions of an odd version, whose answer is in version 0."""

    def run(client: ProbeClient) -> str:
        client.write(bare(18, version, behind))
        frame = client.receive()
        correlation_id, body = decode_response(18, 0, frame)
        keys = body["ApiKeys"]
        return (
            f"version 0 body: error {body['ErrorCode']}, {len(keys)} api keys: {keys[:2]}; corr {correlation_id}; "
            f"whole frame {len(frame)} bytes"
        )

    return run


def api_versions_twice(client: ProbeClient) -> Any:
    return [client.call("ApiVersions", 0)["ErrorCode"] for _ in range(2)]


def unknown_tags(client: ProbeClient) -> str:
    header = request_header("Metadata", 12, 7, client.client_id, {77: b"abc"})
    client.write_frame(header + request_body("Metadata", 12, {"Topics": [], "_tags": {99: b"zz"}}))
    return f"answer {len(client.receive())} bytes"


def correlation_id(frame: bytes) -> int:
    return int(struct.unpack(">i", frame[:4])[0])


def behind_a_waiting_fetch(client: ProbeClient) -> str:
    began = time.monotonic()
    partition = {"Partition": 0, "FetchOffset": 3, "PartitionMaxBytes": 1000}
    fetch = {"ReplicaId": -1, "MaxWaitMs": 1000, "MinBytes": 1000000, "MaxBytes": 1 << 20}
    fetch["Topics"] = [{"Topic": "p", "Partitions": [partition]}]  # type: ignore[assignment]
    sent = [
        client.send("Fetch", 11, fetch),
        client.send("ApiVersions", 0),
        client.send("Metadata", 1, {"Topics": []}),
    ]
    got = []
    for _ in sent:
        frame = client.receive()
        got.append((correlation_id(frame), f"{(time.monotonic() - began) * 1000:.0f} ms"))
    return f"sent correlation ids {sent}; answers {got}"


def pipelined(client: ProbeClient) -> str:
    sent = [client.send("Metadata", 1, {"Topics": []}) for _ in range(200)]
    return f"answers in order: {[correlation_id(client.receive()) for _ in sent] == sent}"


def same_id_twice(client: ProbeClient) -> Any:
    client.write(framed(METADATA) * 2)
    return [correlation_id(client.receive()) for _ in range(2)]


CASES: list[Case | Step] = [
    Case("size negative", None, sends(b"\xff\xff\xff\xff")),
    Case("size -2147483648", None, sends(b"\x80\0\0\0")),
    Case("size above socket.request.max.bytes", None, sends(struct.pack(">i", 104857601))),
    Case(
        "size exactly 104857600, 10 bytes of body, then wait",
        None,
        sends(struct.pack(">i", 104857600) + bytes(10)),
        look_after=False,
    ),
    Case("size 0", None, sends(b"\0\0\0\0")),
    Case("size 1", None, sends(b"\0\0\0\1\0")),
    Case("size 4: key and version only", None, sends(framed(struct.pack(">hh", 3, 1)))),
    Case("header cut after the correlation id (Metadata v1)", None, sends(framed(struct.pack(">hhi", 3, 1, 9)))),
    Case("truncated frame, then half close", None, half_closed),
    Case("frame sent byte by byte", "Metadata", byte_by_byte),
    Case("unknown api key", None, sends(bare(999, 0))),
    Case("api key -1", None, sends(bare(-1, 0))),
    Case("controller-only api key (Vote, 52)", None, sends(framed(encode_request("Vote", 0, {}, 7)))),
    Case(
        "BrokerRegistration (62) on a ZooKeeper broker",
        None,
        sends(framed(encode_request("BrokerRegistration", 0, {}, 7))),
    ),
    *(
        Case(f"{api} with unsupported version {version}", None, sends(bare(key, version)))
        for api, key, version in (
            ("Produce", 0, 99),
            ("Fetch", 1, 99),
            ("Metadata", 3, 99),
            ("Metadata", 3, -1),
            ("Fetch", 1, 18),
        )
    ),
    Case("ApiVersions v99", "ApiVersions", api_versions(99)),
    Case("ApiVersions v99", "ApiVersions", api_versions(99, b"\0\2t\2t\0")),
    Case("ApiVersions v-1", "ApiVersions", api_versions(-1)),
    Case("ApiVersions v3, body cut", "ApiVersions", sends(bare(18, 3, b"\0"))),
    Case(
        "ApiVersions v3, invalid software name",
        "ApiVersions",
        calls("ApiVersions", 3, {"ClientSoftwareName": "bad name!", "ClientSoftwareVersion": "1"}),
    ),
    Case(
        "ApiVersions v3, empty software name",
        "ApiVersions",
        calls("ApiVersions", 3, {"ClientSoftwareName": "", "ClientSoftwareVersion": ""}),
    ),
    Case("ApiVersions v0 twice on one connection", "ApiVersions", api_versions_twice),
    Case("Metadata v1 without any ApiVersions before", "Metadata", calls("Metadata", 1, {"Topics": []})),
    Case("garbage (HTTP GET)", None, sends(b"GET / HTTP/1.1\r\n\r\n")),
    Case("TLS ClientHello", None, sends(bytes.fromhex("160301020001000000") + bytes(60))),
    Case("client id null", None, sends_for_size(bare(3, 1, bytes(4)))),
    Case("client id empty", None, sends_for_size(framed(struct.pack(">hhih", 3, 1, 7, 0) + bytes(4)))),
    Case(
        "client id invalid UTF-8",
        None,
        sends_for_size(framed(struct.pack(">hhih", 3, 1, 7, 3) + b"\xff\xfe\x80" + bytes(4))),
    ),
    Case("client id length beyond the frame", None, sends(framed(struct.pack(">hhih", 3, 1, 7, 1000) + b"abc"))),
    Case("client id length -5", None, sends(framed(struct.pack(">hhih", 3, 1, 7, -5) + bytes(4)))),
    Case("bytes left over after the body", "Metadata", sends(framed(METADATA + b"extra"))),
    Case("body cut", "Metadata", sends(framed(METADATA_HEADER + struct.pack(">i", 3)))),
    Case("array length 2147483647", "Metadata", sends(framed(METADATA_HEADER + struct.pack(">i", 2**31 - 1)))),
    Case("array length -2", "Metadata", sends(framed(METADATA_HEADER + struct.pack(">i", -2)))),
    Case(
        "null for a non-nullable array",
        "CreateTopics",
        sends(framed(request_header("CreateTopics", 2, 7) + struct.pack(">iib", -1, 1000, 0))),
    ),
    Case("null topic name in Metadata v1", "Metadata", sends(framed(METADATA_HEADER + struct.pack(">ih", 1, -1)))),
    Case("unknown tagged field in header and body", "Metadata", unknown_tags),
    Case(
        "varint of 6 bytes in a flexible array",
        "Metadata",
        sends(framed(request_header("Metadata", 12, 7) + b"\xff\xff\xff\xff\xff\x01")),
    ),
    Case("three requests pipelined, the first a Fetch that waits 1 s", "Fetch", behind_a_waiting_fetch),
    Case("200 requests pipelined", "Metadata", pipelined),
    Case("same correlation id twice", "Metadata", same_id_twice),
    Case("SaslHandshake on a PLAINTEXT listener", "SaslHandshake", calls("SaslHandshake", 1, {"Mechanism": "PLAIN"})),
    Case(
        "SaslAuthenticate on a PLAINTEXT listener",
        "SaslAuthenticate",
        calls("SaslAuthenticate", 1, {"AuthBytes": b"x"}),
    ),
]
