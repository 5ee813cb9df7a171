"""Requests of a few APIs as ready bytes, and a blocking connection: a client that costs next to nothing.

Nothing here uses pybroker's own codec, so that a load measures the broker and not its client. Versions are ones that
Apache Kafka 3.9 and pybroker both serve: Produce 7, Fetch 11, Metadata 5, ApiVersions 0.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

from crc32c import crc32c

Address = tuple[str, int]

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
_RECEIVE_BYTES = 8 << 20


def varint(number: int) -> bytes:
    """A zigzag varint, as records have it."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def batch(values: Sequence[bytes]) -> bytes:
    """An uncompressed V2 batch with these values, no keys, timestamps of now."""
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    return batch_of(records, len(values))


def batch_of(records: bytes | bytearray, count: int) -> bytes:
    """A batch of `count` records that are encoded already."""
    now, last = int(time.time() * 1000), count - 1
    checked = struct.pack(">hiqqqhii", 0, last, now, now, -1, -1, -1, count) + records
    after_length = struct.pack(">iBI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def request(api_key: int, version: int, body: bytes) -> bytes:
    """A whole frame; the correlation id is always 1, since answers come in order."""
    content = struct.pack(">hhi", api_key, version, 1) + string("bench") + body
    return struct.pack(">i", len(content)) + content


def produce(topic: str, partition: int, records: bytes, acks: int) -> bytes:
    body = struct.pack(">hhii", -1, acks, 30_000, 1) + string(topic)
    return request(PRODUCE, 7, body + struct.pack(">iii", 1, partition, len(records)) + records)


def fetch(topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int = 500) -> bytes:
    body = struct.pack(">iiiibiii", -1, wait_ms, 1, max_bytes, 0, 0, -1, 1) + string(topic)
    body += struct.pack(">iiiqqii", 1, partition, -1, offset, -1, max_bytes, 0) + string("")
    return request(FETCH, 11, body)


def metadata(*topics: str) -> bytes:
    names = b"".join(string(topic) for topic in topics)
    return request(METADATA, 5, struct.pack(">i", len(topics)) + names + b"\0")


def api_versions() -> bytes:
    return request(API_VERSIONS, 0, b"")


class Connection:
    """One blocking connection. Answers are views into its own buffer, valid until the next one."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def send(self, frame: bytes) -> None:
        self.socket.sendall(frame)

    def answer(self) -> memoryview:
        """The next answer without its size field. EOFError when the broker has closed the connection."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def ask(self, frame: bytes) -> memoryview:
        self.socket.sendall(frame)
        return self.answer()

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int) -> memoryview:
        view, have = self._buffer[:size], 0
        while have < size:
            count = self.socket.recv_into(view[have:])
            if not count:
                raise EOFError("the broker closed the connection")
            have += count
        return view


def base_offset(answer: memoryview, topic: str) -> int:
    """The base offset of a Produce 7 answer for one partition. RuntimeError if it holds an error."""
    at = 4 + 4 + 2 + len(topic) + 4 + 4  # correlation id, topics, name, partitions, index
    error, offset = struct.unpack_from(">hq", answer, at)
    if error:
        raise RuntimeError(f"Produce answered error {error}")
    return int(offset)


class Fetched:
    """What a Fetch 11 answer for one partition holds."""

    __slots__ = ("answer", "high_watermark", "next_offset", "records_at", "size")

    def __init__(self, answer: memoryview, topic: str, offset: int) -> None:
        # correlation id, throttle time, error, session, topics, name, partitions, index
        at = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4
        error, self.high_watermark = struct.unpack_from(">hq", answer, at)
        if error:
            raise RuntimeError(f"Fetch answered error {error} at offset {offset}")
        aborted, _, self.size = struct.unpack_from(">iii", answer, at + 26)
        if aborted > 0:
            raise RuntimeError("Fetch answered aborted transactions where there are none")
        self.answer = answer
        self.records_at = at + 38
        self.next_offset = self._behind(offset)

    def _behind(self, offset: int) -> int:
        """The offset behind the last whole batch."""
        answer, at, end = self.answer, self.records_at, self.records_at + self.size
        while at + 12 <= end:
            base, length = struct.unpack_from(">qi", answer, at)
            if at + 12 + length > end:
                break
            offset = base + struct.unpack_from(">i", answer, at + 23)[0] + 1
            at += 12 + length
        return offset
