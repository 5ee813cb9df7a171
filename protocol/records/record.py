"""Records inside batches of magic 2: reading them strictly, building batches, and control records.

A record (`org.apache.kafka.common.record.DefaultRecord`): varint length, attributes i8 0, varlong timestamp delta,
varint offset delta, varint key length (-1 null) and key, varint value length and value, varint header count, and per
header varint key length and key, varint value length (-1 null) and value. Varints are zigzag. All records of a batch
are compressed as one block.

A control batch holds one record: key i16 version 0, i16 type (0 abort, 1 commit); value i16 version 0, i32 coordinator
epoch (KIP-98, `EndTransactionMarker`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from pybroker.protocol.compression import DEFAULT_LIMIT, Codec, codec_of, compress, decompress
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import (
    ATTRIBUTES_AT,
    BATCH_OVERHEAD,
    CONTROL_FLAG,
    CRC_AT,
    CREATE_TIME,
    DELETE_HORIZON_FLAG,
    HEADER,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    UINT32,
    BatchHeader,
    Buffer,
    crc32c,
    read_header,
)

ABORT = 0
COMMIT = 1

_CONTROL_KEY = Struct(">hh")
_CONTROL_VALUE = Struct(">hi")
_MAX_INT32 = 0x7FFFFFFF
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1
_UNDERFLOW = "Incorrect declared batch size, premature EOF reached"
_STRUCTURE = "Found invalid record structure"

Headers = tuple[tuple[bytes, bytes | None], ...]


class Record(NamedTuple):
    """One record, of any magic. Timestamp in ms or -1; header keys are UTF-8 as sent; sequence -1 means none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    sequence: int = NO_SEQUENCE


class EndTxnMarker(NamedTuple):
    """What the control record at the end of a transaction says."""

    commit: bool
    coordinator_epoch: int


def invalid(message: str) -> KafkaError:
    """Kafka's InvalidRecordException."""
    return KafkaError(Errors.INVALID_RECORD, message)


# --- reading


def iter_records(
    batch: Buffer, header: BatchHeader | None = None, limit: int = DEFAULT_LIMIT, *, payload: bytes | None = None
) -> Iterator[Record]:
    """Every record of the magic 2 batch that `batch` is (or starts with), offsets and timestamps absolute.

    Raises KafkaError: INVALID_RECORD with Kafka's message where the inside is not as declared, CorruptRecords where it
    can't be decompressed or holds more than `limit` bytes. The CRC is not checked. `payload` is the records area if the
    caller has decompressed it already.
    """
    if header is None:
        header = read_header(batch)
    if payload is None:
        payload = payload_of(batch, header, limit)
    count = header.count
    if count < 0:
        raise invalid(f"Found invalid record count {count} in magic v{header.magic} batch")
    base_offset, base_timestamp, sequence = header.base_offset, header.base_timestamp, header.base_sequence
    append_time = header.max_timestamp if header.is_log_append_time else None
    # In a compressed batch Kafka reads a stream, where an early end is seen before the structure.
    underflow = _STRUCTURE if header.codec == Codec.NONE else _UNDERFLOW
    at, end = 0, len(payload)
    for left in range(count - 1, -1, -1):
        delta, timestamp_delta, key, value, headers, at = _read_record(payload, at, end, underflow)
        if left == 0 and at != end:
            raise invalid("Incorrect declared batch size, records still remaining in file")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        if not _MIN_INT64 <= timestamp <= _MAX_INT64:  # Java's sums wrap around
            timestamp = (timestamp - _MIN_INT64) % (1 << 64) + _MIN_INT64
        yield Record(
            base_offset + delta,
            timestamp,
            key,
            value,
            headers,
            increment_sequence(sequence, delta) if sequence >= 0 else NO_SEQUENCE,
        )


def payload_of(batch: Buffer, header: BatchHeader, limit: int = DEFAULT_LIMIT) -> bytes:
    """The records area of a magic 2 batch, decompressed. Raises CorruptRecords as `decompress`."""
    return decompress(header.codec, memoryview(batch)[BATCH_OVERHEAD : header.size], limit)


def increment_sequence(sequence: int, by: int) -> int:
    """Sequences go from 2^31 - 1 to 0."""
    return (sequence + by) & _MAX_INT32


def _read_record(
    data: bytes, at: int, end: int, underflow: str
) -> tuple[int, int, bytes | None, bytes | None, Headers, int]:
    """(offset delta, timestamp delta, key, value, headers, position after it) of the record at `at`."""
    try:
        size, at = _varint(data, at)
    except IndexError:
        raise invalid(_UNDERFLOW) from None
    except OverflowError as error:  # an IllegalArgumentException outside Kafka's own handling
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from None
    start = at
    if size > end - at:
        raise invalid(
            f"Invalid record size: expected {size} bytes in record payload, but instead the buffer has only "
            f"{end - at} remaining bytes."
        )
    try:
        timestamp_delta, at = _varint(data, at + 1, 10)
        offset_delta, at = _varint(data, at)
        key, at = _read_bytes(data, at, end, underflow)
        value, at = _read_bytes(data, at, end, underflow)
        headers: Headers = ()
        if data[at]:
            headers, at = _read_headers(data, at, end, underflow)
        else:
            at += 1
    except IndexError:
        raise invalid(underflow) from None
    except OverflowError:
        raise invalid(_STRUCTURE) from None
    if at - start != size:
        raise invalid(
            f"Invalid record size: expected to read {size} bytes in record payload, but instead read {at - start}"
        )
    return offset_delta, timestamp_delta, key, value, headers, at


def _read_headers(data: bytes, at: int, end: int, underflow: str) -> tuple[Headers, int]:
    count, at = _varint(data, at)
    if count < 0:
        raise invalid(f"Found invalid number of record headers {count}")
    if count > end - at:
        raise invalid(
            f"Found invalid number of record headers. {count} is larger than the remaining size of the buffer"
        )
    headers = []
    for _ in range(count):
        size, _after = _varint(data, at)
        if size < 0:
            raise invalid(f"Invalid negative header key size {size}")
        key, at = _read_bytes(data, at, end, underflow)
        value, at = _read_bytes(data, at, end, underflow)
        headers.append((key or b"", value))
    return tuple(headers), at


def _read_bytes(data: bytes, at: int, end: int, underflow: str) -> tuple[bytes | None, int]:
    size = data[at]
    if size < 0x80:  # what _varint would do; most lengths are one byte, and this runs twice per record
        if size & 1:
            return None, at + 1
        size >>= 1
        at += 1
    else:
        size, at = _varint(data, at)
        if size < 0:
            return None, at
    stop = at + size
    if stop > end:
        raise invalid(underflow)
    return data[at:stop], stop


def _varint(data: bytes, at: int, longest: int = 5) -> tuple[int, int]:
    """(value, position after) of a zigzag varint. IndexError at the end of data, OverflowError if it is too long."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift, stop = byte & 0x7F, 7, at + longest
    at += 1
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        if at >= stop:
            raise OverflowError(f"Varint is too long, the most significant bit in byte {longest} is set")
        shift += 7
    value &= 0xFFFFFFFF if longest == 5 else 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1), at


# --- building


def put_varint(out: bytearray, value: int) -> None:
    """Appends a zigzag varint; value fits in 64 bits."""
    value = value << 1 if value >= 0 else (~value << 1) | 1
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


class BatchBuilder:
    """Builds one magic 2 batch, record by record, then `build()`.

    base_offset: of the batch (int64). base_timestamp: None takes the first record's. last_offset: None takes the last
    record's; a compacted batch keeps its own. delete_horizon: ms, stored instead of the base timestamp.
    log_append_time: ms, the batch's max timestamp where timestamp_type is LOG_APPEND_TIME.
    """

    __slots__ = (
        "_attributes",
        "_base_timestamp",
        "_codec",
        "_count",
        "_last_offset",
        "_level",
        "_log_append_time",
        "_max_timestamp",
        "_payload",
        "base_offset",
        "base_sequence",
        "leader_epoch",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        base_offset: int = 0,
        *,
        codec: int = Codec.NONE,
        level: int | None = None,
        leader_epoch: int = NO_LEADER_EPOCH,
        timestamp_type: int = CREATE_TIME,
        log_append_time: int = NO_TIMESTAMP,
        base_timestamp: int | None = None,
        delete_horizon: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self._codec = codec_of(codec)
        self._level = level
        self._attributes = (
            (LOG_APPEND_TIME_FLAG if timestamp_type == LOG_APPEND_TIME else 0)
            | (TRANSACTIONAL_FLAG if transactional else 0)
            | (CONTROL_FLAG if control else 0)
            | (DELETE_HORIZON_FLAG if delete_horizon is not None else 0)
        )
        self._base_timestamp = delete_horizon if delete_horizon is not None else base_timestamp
        self._log_append_time = log_append_time if timestamp_type == LOG_APPEND_TIME else None
        self._max_timestamp = NO_TIMESTAMP
        self._last_offset: int | None = None
        self._count = 0
        self._payload = bytearray()

    @property
    def count(self) -> int:
        """Records so far."""
        return self._count

    @property
    def size(self) -> int:
        """Bytes of the batch if it were built now without compression."""
        return BATCH_OVERHEAD + len(self._payload)

    @property
    def next_offset(self) -> int:
        """The offset after the last record's, or the base offset."""
        return self.base_offset if self._last_offset is None else self._last_offset + 1

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
        """Adds a record at the next offset, which is returned."""
        offset = self.next_offset
        self.append_record(Record(offset, timestamp, key, value, headers))
        return offset

    def append_record(self, record: Record) -> None:
        """Adds a record with its own offset, above the last one's (else ValueError).

        KafkaError(UNKNOWN_SERVER_ERROR), as Kafka, for a timestamp below 0 other than -1.
        """
        offset, timestamp = record.offset, record.timestamp
        if offset < self.next_offset or offset - self.base_offset > _MAX_INT32:
            raise ValueError(f"offset {offset} does not follow in a batch that is at {self.next_offset}")
        if timestamp < 0 and timestamp != NO_TIMESTAMP:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, f"Invalid negative timestamp {timestamp}")
        if self._base_timestamp is None:
            self._base_timestamp = timestamp
        body = _encode_body(record, timestamp - self._base_timestamp, offset - self.base_offset)
        put_varint(self._payload, len(body))
        self._payload += body
        self._last_offset = offset
        self._count += 1
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp

    def build(self, *, last_offset: int | None = None, max_timestamp: int | None = None) -> bytearray:
        """The batch. last_offset and max_timestamp are for batches that lost records to compaction; one without any
        records needs last_offset, and takes max_timestamp as its base timestamp too."""
        last = self._last_offset if last_offset is None else last_offset
        if last is None:
            raise ValueError("a batch without records needs a last offset")
        newest = self._max_timestamp if max_timestamp is None else max_timestamp
        if self._log_append_time is not None and max_timestamp is None:
            newest = self._log_append_time
        base_timestamp = newest if self._base_timestamp is None else self._base_timestamp
        codec = self._codec if self._count else Codec.NONE
        return pack(
            BatchHeader(
                self.base_offset, 0, self.leader_epoch, MAGIC_V2, 0, self._attributes | codec, last - self.base_offset,
                base_timestamp, newest, self.producer_id, self.producer_epoch, self.base_sequence, self._count,
            ),
            self._payload, self._level,
        )  # fmt: skip


def pack(header: BatchHeader, payload: Buffer, level: int | None = None) -> bytearray:
    """As assemble, of a records area that has yet to be compressed with the header's codec. For a thread, if large."""
    return assemble(header, compress(header.codec, payload, level) if header.codec else payload)


def assemble(header: BatchHeader, payload: Buffer) -> bytearray:
    """The batch of that header, its length and CRC computed, and a records area that is already compressed."""
    batch = bytearray(BATCH_OVERHEAD)
    HEADER.pack_into(batch, 0, *header._replace(length=BATCH_OVERHEAD - LOG_OVERHEAD + len(payload), crc=0))
    batch += payload
    UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return batch


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    codec: int = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    timestamp_type: int = CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
    base_timestamp: int | None = None,
    delete_horizon: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    last_offset: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """One batch of records with their own offsets; arguments and errors as BatchBuilder's.

    base_offset None takes the first record's. ValueError without records unless base and last offset are given.
    """
    remaining = iter(records)
    first = next(remaining, None)
    if base_offset is None:
        if first is None:
            raise ValueError("a batch without records needs a base offset")
        base_offset = first.offset
    builder = BatchBuilder(
        base_offset, codec=codec, level=level, leader_epoch=leader_epoch, timestamp_type=timestamp_type,
        log_append_time=log_append_time, base_timestamp=base_timestamp, delete_horizon=delete_horizon,
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence,
        transactional=transactional, control=control,
    )  # fmt: skip
    if first is not None:
        builder.append_record(first)
        for record in remaining:
            builder.append_record(record)
    return builder.build(last_offset=last_offset, max_timestamp=max_timestamp)


def _encode_body(record: Record, timestamp_delta: int, offset_delta: int) -> bytearray:
    body = bytearray(1)
    put_varint(body, timestamp_delta)
    put_varint(body, offset_delta)
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    put_varint(body, len(record.headers))
    for key, value in record.headers:
        _put_bytes(body, key)
        _put_bytes(body, value)
    return body


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # zigzag of -1
    else:
        put_varint(out, len(value))
        out += value


# --- control records


def end_txn_batch(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The control batch (78 bytes) that ends a transaction of that producer in one partition."""
    key = _CONTROL_KEY.pack(0, COMMIT if marker.commit else ABORT)
    value = _CONTROL_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp, key, value)], leader_epoch=leader_epoch, producer_id=producer_id,
        producer_epoch=producer_epoch, transactional=True, control=True,
    )  # fmt: skip


def read_end_txn_marker(record: Record) -> EndTxnMarker | None:
    """The marker in a control batch's record; None for control records of other types.

    Raises KafkaError(INVALID_RECORD) for a key or value that is too short or of a negative version.
    """
    key, value = record.key or b"", record.value or b""
    if len(key) < _CONTROL_KEY.size:
        raise invalid(
            f"Invalid value size found for control record key. Must have at least {_CONTROL_KEY.size} bytes, "
            f"but found only {len(key)}"
        )
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise invalid(f"Invalid version found for control record: {version}. May indicate data corruption")
    if kind not in (ABORT, COMMIT):
        return None
    if len(value) < _CONTROL_VALUE.size:
        raise invalid(
            f"Invalid value size found for end txn marker. Must have at least {_CONTROL_VALUE.size} bytes, "
            f"but found only {len(value)}"
        )
    version, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    if version < 0:
        raise invalid(f"Invalid version found for end transaction marker: {version}. May indicate data corruption")
    return EndTxnMarker(kind == COMMIT, coordinator_epoch)
