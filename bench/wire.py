"""Requests of a few APIs as ready bytes, and a blocking connection: a client that costs next to nothing.

Nothing here uses pybroker's own codec, so that a load measures the broker and not its client. Versions are ones that
Apache Kafka 3.9 and pybroker both serve: Produce 7, Fetch 11, Metadata 5, ApiVersions 0, CreateTopics 4,
ElectLeaders 1.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

Address = tuple[str, int]

PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE_TOPICS, ELECT_LEADERS = 0, 1, 3, 18, 19, 43
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
    """Of these topics; of none if none are named."""
    names = b"".join(string(topic) for topic in topics)
    return request(METADATA, 5, struct.pack(">i", len(topics)) + names + b"\0")


def all_metadata() -> bytes:
    """Metadata of all topics."""
    return request(METADATA, 5, struct.pack(">i", -1) + b"\0")


def create_topics(topics: Mapping[str, Sequence[Sequence[int]] | int], replicas: int, timeout_ms: int) -> bytes:
    """Topics by name: the replicas of each partition, or how many partitions, whose replicas the broker chooses."""
    body = struct.pack(">i", len(topics))
    for name, given in topics.items():
        if isinstance(given, int):
            body += string(name) + struct.pack(">ihi", given, replicas, 0)
        else:
            body += string(name) + struct.pack(">ihi", -1, -1, len(given))
            for index, brokers in enumerate(given):
                body += struct.pack(f">ii{len(brokers)}i", index, len(brokers), *brokers)
        body += struct.pack(">i", 0)  # configs
    return request(CREATE_TOPICS, 4, body + struct.pack(">i?", timeout_ms, False))


def api_versions() -> bytes:
    return request(API_VERSIONS, 0, b"")


def elect_preferred(timeout_ms: int) -> bytes:
    """The preferred leaders of all partitions."""
    return request(ELECT_LEADERS, 1, struct.pack(">bii", 0, -1, timeout_ms))


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


def check_created(answer: memoryview) -> None:
    """RuntimeError if a CreateTopics 4 answer holds an error."""
    reader = _Reader(answer, 8)  # correlation id, throttle time
    for _ in range(reader.int32()):
        name, error, reason = reader.string(), reader.int16(), reader.string()
        if error:
            raise RuntimeError(f"CreateTopics answered error {error} for {name}: {reason}")


@dataclass
class Cluster:
    """What a Metadata 5 answer says: addresses by broker, the controller's id (-1: none), leader and in-sync replicas
    by (topic, partition)."""

    brokers: dict[int, Address] = field(default_factory=dict)
    controller: int = -1
    partitions: dict[tuple[str, int], tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: memoryview) -> Cluster:
        found, reader = cls(), _Reader(answer, 8)  # correlation id, throttle time
        for _ in range(reader.int32()):
            broker_id, host, port = reader.int32(), reader.string(), reader.int32()
            found.brokers[broker_id] = host, port
            reader.string()  # rack
        reader.string()  # cluster id
        found.controller = reader.int32()
        for _ in range(reader.int32()):
            reader.int16()  # error
            name = reader.string()
            reader.at += 1  # internal
            for _ in range(reader.int32()):
                _, index, leader = reader.int16(), reader.int32(), reader.int32()
                reader.int32s()  # replicas
                found.partitions[name, index] = leader, reader.int32s()
                reader.int32s()  # offline ones
        return found


class _Reader:
    """Fields of an answer, one after the other from position `at`."""

    __slots__ = ("_answer", "at")

    def __init__(self, answer: memoryview, at: int) -> None:
        self._answer, self.at = answer, at

    def int16(self) -> int:
        self.at += 2
        return int.from_bytes(self._answer[self.at - 2 : self.at], signed=True)

    def int32(self) -> int:
        self.at += 4
        return int.from_bytes(self._answer[self.at - 4 : self.at], signed=True)

    def int32s(self) -> tuple[int, ...]:
        count = self.int32()
        found = struct.unpack_from(f">{count}i", self._answer, self.at)
        self.at += 4 * count
        return found

    def string(self) -> str:
        """"" for null."""
        size = max(0, self.int16())
        self.at += size
        return str(self._answer[self.at - size : self.at], "utf-8")
