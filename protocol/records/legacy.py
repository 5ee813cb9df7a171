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
    magic = wrapper.magic
    if wrapper.codec == Codec.ZSTD:
        raise invalid(f"Invalid wrapper compressionType found in legacy deep record iterator {magic}")
    _, value = key_and_value(entry, 0, wrapper)
    if value is None:
        raise invalid(f"Found invalid compressed record set with null value (magic = {magic})")
    inner = decompress(wrapper.codec, value, limit, magic=magic)
    last = None
    for _, header in _inner_headers(inner):  # walked twice rather than kept: a small wrapper may hold millions
        last = header.base_offset
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
    for index, (at, header) in enumerate(_inner_headers(inner)):
        if header.codec != Codec.NONE:
            raise invalid("Inner messages must not be compressed")
        if header.magic != magic:
            raise invalid(f"Record {index}'s magic does not match outer magic {magic}")
        if check_inner:
            ensure_crc(inner, at, header.size)
        timestamp = header.base_timestamp if append_time is None else append_time
        yield Record(base + header.base_offset, timestamp, *key_and_value(inner, at, header))


def _inner_headers(inner: bytes) -> Iterator[tuple[int, BatchHeader]]:
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
    """A message set of magic 0 or 1 with the records' own, ascending offsets; headers are dropped.

    With a codec it is one wrapper, and inner offsets in magic 1 count from the first record's. Empty without records.
    Raises KafkaError: UNKNOWN_SERVER_ERROR, as Kafka, for a timestamp below 0 other than -1;
    UNSUPPORTED_COMPRESSION_TYPE for zstd, which these formats do not know; MESSAGE_TOO_LARGE above `limit` bytes.
    """
    if codec_of(codec) == Codec.ZSTD:
        raise KafkaError(
            Errors.UNSUPPORTED_COMPRESSION_TYPE, "Down-conversion of zstandard-compressed batches is not supported"
        )
    relative = bool(codec) and magic == MAGIC_V1
    fixed_time = log_append_time if timestamp_type == LOG_APPEND_TIME and not codec else None
    out = bytearray()
    base, last, newest = None, 0, NO_TIMESTAMP
    for record in records:
        last, timestamp = record.offset, record.timestamp
        if base is None:
            base = last if relative else 0
        if timestamp < 0 and timestamp != NO_TIMESTAMP:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"Invalid negative timestamp {timestamp}")
        newest = max(newest, timestamp)
        out += encode_message(
            last - base, timestamp if fixed_time is None else fixed_time, record.key, record.value,
            magic=magic, timestamp_type=timestamp_type,
        )  # fmt: skip
        if len(out) > limit:
            raise KafkaError(Errors.MESSAGE_TOO_LARGE, f"A converted message set holds more than {limit} bytes")
    if not codec or base is None:
        return out
    if timestamp_type == LOG_APPEND_TIME:
        newest = log_append_time
    wrapped = compress(codec, out, level, magic=magic)
    return encode_message(last, newest, None, wrapped, magic=magic, codec=codec, timestamp_type=timestamp_type)


def set_timestamp(buf: bytearray | memoryview, at: int, size: int, timestamp_type: int, timestamp: int) -> None:
    """Gives the magic 1 entry at `at` a timestamp and its type in place, and its CRC anew."""
    attributes = buf[at + ATTRIBUTES_AT] & CODEC_MASK
    buf[at + ATTRIBUTES_AT] = attributes | (LOG_APPEND_TIME_FLAG if timestamp_type == LOG_APPEND_TIME else 0)
    _INT64.pack_into(buf, at + TIMESTAMP_AT, timestamp)
    put_crc(buf, at, size)
