"""Record batches for tests, built and read without pybroker.protocol, so that they can also be built wrong."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c

from tests.support.schema import varint

Value = bytes | None
RecordSpec = Value | tuple[Any, ...]  # value, (key, value) or (key, value, headers)


class Header(NamedTuple):
    """Header of a batch of format 2, or what formats 0 and 1 share with it."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int


def _field(value: Value) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(delta: int, key: Value, value: Value, headers: Sequence[tuple[bytes, Value]] = ()) -> bytes:
    """One record of format 2, with its length in front."""
    body = b"\0" + varint(0) + varint(delta) + _field(key) + _field(value) + varint(len(headers))
    body += b"".join(_field(name) + _field(content) for name, content in headers)
    return varint(len(body)) + body


def batch(
    records: Sequence[RecordSpec] = (),
    *,
    base: int = 0,
    attributes: int = 0,
    pid: int = -1,
    epoch: int = -1,
    seq: int = -1,
    ts: int | None = None,
    max_ts: int | None = None,
    magic: int = 2,
    leader_epoch: int = -1,
    crc: int | None = None,
    last_delta: int | None = None,
    count: int | None = None,
    payload: bytes | None = None,
) -> bytes:
    """A batch of format 2; every header field can be given a wrong value."""
    now = int(time.time() * 1000) if ts is None else ts
    whole = [each if isinstance(each, tuple) else (None, each) for each in records]
    if payload is None:
        payload = b"".join(record(index, *each) for index, each in enumerate(whole))
    tail = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            len(whole) - 1 if last_delta is None else last_delta,
            now,
            now if max_ts is None else max_ts,
            pid,
            epoch,
            seq,
            len(whole) if count is None else count,
        )
        + payload
    )
    checksum = crc32c(tail) if crc is None else crc
    return struct.pack(">qiiBI", base, len(tail) + 9, leader_epoch, magic & 0xFF, checksum) + tail


def message(
    value: Value,
    key: Value = None,
    *,
    magic: int = 1,
    ts: int | None = None,
    attributes: int = 0,
    offset: int = 0,
    crc: int | None = None,
) -> bytes:
    """One message of formats 0 and 1."""
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", int(time.time() * 1000) if ts is None else ts)
    for each in (key, value):
        body += struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each
    body = struct.pack(">I", zlib.crc32(body) if crc is None else crc) + body
    return struct.pack(">qi", offset, len(body)) + body


def headers(data: bytes) -> Iterator[Header | None]:
    """Headers of the batches in a records field; None for a last one that is cut."""
    at = 0
    while at + 17 <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        if at + 12 + length > len(data):
            yield None
            return
        if data[at + 16] < 2:
            yield Header(base, length, -1, data[at + 16], 0, data[at + 17], 0, -1, -1, -1, -1, -1, 1)
        else:
            yield Header(*struct.unpack_from(">qiibIhiqqqhii", data, at))
        at += 12 + length


def next_offset(data: bytes) -> int:
    """The offset behind the last whole batch of a records field (format 2)."""
    whole = [each for each in headers(data) if each is not None]
    return whole[-1].base_offset + whole[-1].last_offset_delta + 1
