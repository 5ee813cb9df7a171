"""Message sets of magic 0 and 1, Kafka's record formats before 0.11 (`LegacyRecord`, `AbstractLegacyRecordBatch`).

An entry: offset i64, size i32, CRC32 u32 (of everything from magic on), magic i8, attributes i8 (bits 0-2 codec, bit 3
LogAppendTime in magic 1), timestamp i64 in magic 1, key length i32 (-1 null) and key, value length i32 and value.

A compressed set is one wrapper entry whose value is the compressed set. Its offset is the last inner offset; inner
offsets are absolute in magic 0 and count from 0 in magic 1 (KIP-31); its timestamp in magic 1 is the largest inner
one, or with LogAppendTime the time of every inner message (KIP-32). lz4 in magic 0 has its old header checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from zlib import crc32

from pybroker.protocol.compression import DEFAULT_LIMIT, Codec, codec_of, compress, decompress
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import (
    CODEC_MASK,
    CREATE_TIME,
    HEADER_UP_TO_MAGIC,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_V1,
    MIN_MESSAGE_OVERHEAD,
    NO_TIMESTAMP,
    UINT32,
    BatchHeader,
    Buffer,
    ensure_crc,
    read_header,
)
from pybroker.protocol.records.record import Record, invalid

ATTRIBUTES_AT = 17
TIMESTAMP_AT = 18

_ENTRY = Struct(">qiIbb")  # offset, size, CRC32, magic, attributes
_INT64 = Struct(">q")
_INT32 = Struct(">i")


# --- reading


def iter_records(
    entry: Buffer, header: BatchHeader | None = None, limit: int = DEFAULT_LIMIT, *, check_inner: bool = False
) -> Iterator[Record]:
    """Every record of the one entry that `entry` is (or starts with): itself, or what a wrapper holds.

    Raises KafkaError: INVALID_RECORD with Kafka's messages, CorruptRecords where it can't be decompressed or holds
    more than `limit` bytes, CORRUPT_MESSAGE for inner sizes below the minimum and, with check_inner, for inner CRCs.
    The entry's own CRC is not checked.
    """
    if header is None:
        header = read_header(entry)
    if header.codec == Codec.NONE:
        return iter([Record(header.base_offset, header.base_timestamp, *key_and_value(entry, 0, header))])
    return _unwrap(entry, header, limit, check_inner)


def key_and_value(buf: Buffer, at: int, header: BatchHeader) -> tuple[bytes | None, bytes | None]:
    """Copies of an entry's key and value. KafkaError(INVALID_RECORD) if they don't fit into it."""
    end = at + header.size
    key, at = _read_bytes(buf, at + (26 if header.magic == MAGIC_V1 else 18), end)
    value, _ = _read_bytes(buf, at, end)
    return key, value


def _read_bytes(buf: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    if at + 4 > end:
        raise invalid("Found invalid record structure")
    size = _INT32.unpack_from(buf, at)[0]
    at += 4
    if size < 0:
        return None, at
    if size > end - at:
        raise invalid("Found invalid record structure")
    return bytes(buf[at : at + size]), at + size


def _unwrap(entry: Buffer, wrapper: BatchHeader, limit: int, check_inner: bool) -> Iterator[Record]:
    inner = inner_set(entry, wrapper, limit)
    last = None
    for _, header in inner_headers(inner):  # walked twice rather than kept: a small wrapper may hold millions
        last = header.base_offset
    yield from inner_records(inner, wrapper, last, check_inner=check_inner)


def inner_set(entry: Buffer, wrapper: BatchHeader, limit: int = DEFAULT_LIMIT) -> bytes:
    """The set that a wrapper holds, decompressed. Raises as iter_records."""
    if wrapper.codec == Codec.ZSTD:
        raise invalid(f"Invalid wrapper compressionType found in legacy deep record iterator {wrapper.magic}")
    _, value = key_and_value(entry, 0, wrapper)
    if value is None:
        raise invalid(f"Found invalid compressed record set with null value (magic = {wrapper.magic})")
    return decompress(wrapper.codec, value, limit, magic=wrapper.magic)


def inner_records(
    inner: bytes, wrapper: BatchHeader, last: int | None, *, check_inner: bool = False
) -> Iterator[Record]:
    """The records of a wrapper's set, offsets absolute; `last` is the offset field of its last message."""
    magic = wrapper.magic
    if last is None:
        raise invalid("Found invalid compressed record set with no inner records")
    base = 0
    if magic == MAGIC_V1 and wrapper.base_offset != 0:  # some librdkafka versions produce wrappers of offset 0
        if wrapper.base_offset < last:
            raise invalid(
                f"Found invalid wrapper offset in compressed v1 message set, wrapper offset '{wrapper.base_offset}' "
                f"is less than the last inner message offset '{last}' and it is not zero."
            )
        base = wrapper.base_offset - last
    append_time = wrapper.max_timestamp if magic == MAGIC_V1 and wrapper.is_log_append_time else None
    for index, (at, header) in enumerate(inner_headers(inner)):
        if header.codec != Codec.NONE:
            raise invalid("Inner messages must not be compressed")
        if header.magic != magic:
            raise invalid(f"Record {index}'s magic does not match outer magic {magic}")
        if check_inner:
            ensure_crc(inner, at, header.size)
        timestamp = header.base_timestamp if append_time is None else append_time
        yield Record(base + header.base_offset, timestamp, *key_and_value(inner, at, header))


def inner_headers(inner: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Like iter_headers, but only magic 0 and 1 may stand inside a wrapper."""
    at, end = 0, len(inner)
    while end - at >= LOG_OVERHEAD:
        size = _INT32.unpack_from(inner, at + 8)[0]
        if size < MIN_MESSAGE_OVERHEAD:
            raise KafkaError(
                Errors.CORRUPT_MESSAGE, f"Record size is less than the minimum record overhead ({MIN_MESSAGE_OVERHEAD})"
            )
        if size > end - at - LOG_OVERHEAD:
            return
        if inner[at + HEADER_UP_TO_MAGIC - 1] > MAGIC_V1:
            raise invalid(f"Invalid magic {inner[at + HEADER_UP_TO_MAGIC - 1]} inside a compressed message set")
        header = read_header(inner, at)
        yield at, header
        at += size + LOG_OVERHEAD


# --- writing


def encode_message(
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int,
    codec: int = Codec.NONE,
    timestamp_type: int = CREATE_TIME,
) -> bytearray:
    """One entry of magic 0 or 1. With a codec it is a wrapper, whose value is compressed already."""
    attributes = codec & CODEC_MASK
    if magic == MAGIC_V1 and timestamp_type == LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
    out = bytearray(_ENTRY.size)
    if magic == MAGIC_V1:
        out += _INT64.pack(timestamp)
    for part in (key, value):
        out += _INT32.pack(-1 if part is None else len(part))
        out += part or b""
    _ENTRY.pack_into(out, 0, offset, len(out) - LOG_OVERHEAD, 0, magic, attributes)
    put_crc(out, 0, len(out))
    return out


def put_crc(buf: bytearray | memoryview, at: int, size: int) -> None:
    """Computes the CRC field of the entry of `size` bytes at `at` anew."""
    UINT32.pack_into(buf, at + LOG_OVERHEAD, crc32(memoryview(buf)[at + 16 : at + size]))


class SetBuilder:
    """Builds a message set of magic 0 or 1, record by record, then `build()`. Headers are dropped.

    With a codec it becomes one wrapper, whose inner offsets in magic 1 count from the first record's. log_append_time:
    ms, the time of every message where timestamp_type is LOG_APPEND_TIME. UNSUPPORTED_COMPRESSION_TYPE for zstd, which
    these formats do not know.
    """

    __slots__ = (
        "_base", "_codec", "_fixed_time", "_last", "_level", "_limit", "_log_append_time", "_magic", "_newest", "_out",
        "_timestamp_type",
    )  # fmt: skip

    def __init__(
        self,
        *,
        magic: int,
        codec: int = Codec.NONE,
        level: int | None = None,
        timestamp_type: int = CREATE_TIME,
        log_append_time: int = NO_TIMESTAMP,
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        if codec_of(codec) == Codec.ZSTD:
            raise KafkaError(
                Errors.UNSUPPORTED_COMPRESSION_TYPE, "Down-conversion of zstandard-compressed batches is not supported"
            )
        self._magic = magic
        self._codec = codec
        self._level = level
        self._timestamp_type = timestamp_type
        self._log_append_time = log_append_time
        self._limit = limit
        self._fixed_time = log_append_time if timestamp_type == LOG_APPEND_TIME and not codec else None
        self._base = None if codec and magic == MAGIC_V1 else 0
        self._last, self._newest = 0, NO_TIMESTAMP
        self._out = bytearray()

    def append_record(self, record: Record) -> None:
        """Adds a record with its own offset, above the last one's.

        KafkaError: UNKNOWN_SERVER_ERROR, as Kafka, for a timestamp below 0 other than -1; MESSAGE_TOO_LARGE above the
        limit of bytes.
        """
        self._last, timestamp = record.offset, record.timestamp
        if self._base is None:
            self._base = record.offset
        if timestamp < 0 and timestamp != NO_TIMESTAMP:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"Invalid negative timestamp {timestamp}")
        self._newest = max(self._newest, timestamp)
        self._out += encode_message(
            record.offset - self._base, timestamp if self._fixed_time is None else self._fixed_time,
            record.key, record.value, magic=self._magic, timestamp_type=self._timestamp_type,
        )  # fmt: skip
        if len(self._out) > self._limit:
            raise KafkaError(Errors.MESSAGE_TOO_LARGE, f"A converted message set holds more than {self._limit} bytes")

    def build(self) -> bytearray:
        """The finished set; empty without records."""
        if not self._codec or not self._out:
            return self._out
        newest = self._log_append_time if self._timestamp_type == LOG_APPEND_TIME else self._newest
        return encode_message(
            self._last, newest, None, compress(self._codec, self._out, self._level, magic=self._magic),
            magic=self._magic, codec=self._codec, timestamp_type=self._timestamp_type,
        )  # fmt: skip


def encode_set(
    records: Iterable[Record],
    *,
    magic: int,
    codec: int = Codec.NONE,
    level: int | None = None,
    timestamp_type: int = CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
    limit: int = DEFAULT_LIMIT,
) -> bytearray:
    """A message set of these records, of ascending offsets. Arguments and errors as SetBuilder's."""
    builder = SetBuilder(
        magic=magic, codec=codec, level=level, timestamp_type=timestamp_type, log_append_time=log_append_time,
        limit=limit,
    )  # fmt: skip
    for record in records:
        builder.append_record(record)
    return builder.build()


def set_timestamp(buf: bytearray | memoryview, at: int, size: int, timestamp_type: int, timestamp: int) -> None:
    """Gives the magic 1 entry at `at` a timestamp and its type in place, and its CRC anew."""
    attributes = buf[at + ATTRIBUTES_AT] & CODEC_MASK
    buf[at + ATTRIBUTES_AT] = attributes | (LOG_APPEND_TIME_FLAG if timestamp_type == LOG_APPEND_TIME else 0)
    _INT64.pack_into(buf, at + TIMESTAMP_AT, timestamp)
    put_crc(buf, at, size)
