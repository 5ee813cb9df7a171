"""What is asked of records before they are appended, and what is done to them: all but the common case.

The common case, one batch of magic 2 with an allowed codec in a CreateTime topic, is judged by its header in
`Log.append_as_leader` itself. Here is the rest, and every refusal, in Kafka's order (KafkaApis, UnifiedLog,
LogValidator):

1. the records field as the Produce version allows it (`check_produce`): exactly one whole batch of magic 2 since
   version 3, no zstd before version 7;
2. base offset 0, size, CRC;
3. the header's rules; then the records, where the topic's settings ask for a look inside: old formats, compacted
   topics without a key somewhere, timestamp limits, validate.records.

Batches are decompressed for 3 only, and for a compression.type that is not the batch's; then their records are not
looked at. Kafka always looks, and refuses what is damaged inside: here validate.records asks for that.
"""

from __future__ import annotations

from functools import cache, partial
from struct import Struct
from typing import TYPE_CHECKING

from pybroker.protocol.compression import Codec, codec_of
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.convert import set_max_timestamp, validating
from pybroker.protocol.records.header import (
    CODEC_MASK,
    CREATE_TIME,
    HEADER_UP_TO_MAGIC,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MIN_MESSAGE_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_crc,
    iter_headers,
    read_header,
)
from pybroker.protocol.records.reading import LARGE, Meter, survey
from pybroker.protocol.records.record import pack, payload_of
from pybroker.protocol.records.validate import MAX_INT64, RecordsRejected, TopicRules, check_batch
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.work import Work, finish

if TYPE_CHECKING:
    from pybroker.config import LogConfig

__all__ = ["AppendRules", "InvalidProduce", "RecordsRejected", "check_produce", "prepare", "preparing", "read_batches"]

_ONE_BATCH_SINCE = 3  # Produce versions
_ZSTD_SINCE = 7
# What takes the event loop a millisecond or more, if records have to be read: bytes, or records.
_LONG_BYTES, _LONG_RECORDS = 16 << 10, 200
_KEYS_A_STEP = 2048
_LENGTH = Struct(">i")
_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class InvalidProduce(KafkaError):
    """A records field that its Produce version does not allow, found before a log is asked: log start offset is -1.

    With a message it is a size or magic that cannot be, for which Kafka refuses the whole request.
    """


class AppendRules:
    """A topic's settings as an append needs them."""

    __slots__ = ("_after_max_ms", "_look_inside", "codec", "header_only", "log_append_time", "max_bytes", "topic")

    def __init__(self, config: LogConfig, topic_partition: TopicPartition) -> None:
        self.codec = codec = _CODECS[config.compression_type]
        self.log_append_time = config.message_timestamp_type == "LogAppendTime"
        before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
        self.max_bytes = config.max_message_bytes
        self.topic = TopicRules(
            topic_partition=f"{topic_partition.topic}-{topic_partition.partition}",
            codec=codec,
            level=_level(config, codec),
            timestamp_type=LOG_APPEND_TIME if self.log_append_time else CREATE_TIME,
            before_max_ms=before,
            after_max_ms=after,
            compacted=config.compact,
        )
        self._after_max_ms = after
        before_matters = before != MAX_INT64 and not self.log_append_time
        self._look_inside = config.validate_records or before_matters
        plain = not (self._look_inside or config.compact or self.log_append_time) and after == MAX_INT64
        self.header_only = _attributes_of(codec) if plain else frozenset()

    def must_look_inside(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether this batch's records have to be read."""
        if header.magic < MAGIC_V2 or self._look_inside:
            return True
        if self.log_append_time:
            return header.is_log_append_time  # every record of it will be refused
        return header.max_timestamp > now_ms + self._after_max_ms

    def takes_long(self, records: memoryview, now_ms: int) -> bool:
        """Whether it would hold up the event loop to prepare what a client sent: records have to be read, or packed
        anew, and they are many, or nobody knows how many."""
        if len(records) < HEADER_UP_TO_MAGIC or (size := _whole_batch(records, 0)) is None:
            return False
        header = read_header(records)
        reads = self.must_look_inside(header, now_ms) or self.topic.compacted or len(records) > size
        if not reads and self.codec in (None, header.codec):
            return False
        if len(records) >= _LONG_BYTES or header.codec == Codec.ZSTD:  # which packs anything into very little
            return True
        return header.codec != Codec.NONE if header.magic < MAGIC_V2 else header.count > _LONG_RECORDS


@cache
def _attributes_of(codec: Codec | None) -> frozenset[int]:
    """The attributes of batches that are stored as they come where the topic's codec is this; one set for all logs."""
    codecs = tuple(Codec) if codec is None else (codec,)
    return frozenset(int(one) | flag for one in codecs for flag in (0, TRANSACTIONAL_FLAG))


def _level(config: LogConfig, codec: Codec | None) -> int | None:
    if codec == Codec.GZIP:
        return config.compression_gzip_level
    if codec == Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == Codec.ZSTD else None


def prepare(
    records: memoryview, rules: AppendRules, *, version: int, now_ms: int, from_client: bool
) -> tuple[memoryview, BatchHeader] | None:
    """As `preparing`, at once."""
    return finish(preparing(records, rules, version=version, now_ms=now_ms, from_client=from_client))


def preparing(
    records: memoryview, rules: AppendRules, *, version: int, now_ms: int, from_client: bool
) -> Work[tuple[memoryview, BatchHeader] | None]:
    """The one batch to be written and its header, all set but for base offset and leader epoch; None if there is none.

    It may lie in `records`, which is changed then. Raises InvalidProduce, RecordsRejected and other KafkaErrors, whose
    messages are for the client; what only a log should tell is a note.
    """
    if from_client and version >= _ONE_BATCH_SINCE:
        check_produce(records, version)
    try:
        return (yield from _preparing(records, rules, now_ms, from_client))
    except KafkaError as error:
        if error.message is None or isinstance(error, RecordsRejected):
            raise
        raise _silent(error.code, error.message) from error


def check_produce(records: memoryview, version: int) -> None:
    """InvalidProduce unless `records` is what a Produce request of this version (>= 3) may carry."""
    size = _whole_batch(records, 0)
    if size is None:
        raise InvalidProduce(Errors.INVALID_RECORD)
    if records[MAGIC_AT] != MAGIC_V2:
        raise InvalidProduce(Errors.INVALID_RECORD)
    if version < _ZSTD_SINCE and read_header(records).codec == Codec.ZSTD:
        raise InvalidProduce(Errors.UNSUPPORTED_COMPRESSION_TYPE)
    if _whole_batch(records, size) is not None:
        raise InvalidProduce(Errors.INVALID_RECORD)


def _whole_batch(records: memoryview, at: int) -> int | None:
    """The size of the whole batch at `at`, None if there is none; InvalidProduce for one that cannot be."""
    left = len(records) - at
    if left < LOG_OVERHEAD:
        return None
    length = _LENGTH.unpack_from(records, at + LENGTH_AT)[0]
    if length < MIN_MESSAGE_OVERHEAD:
        raise InvalidProduce(
            Errors.CORRUPT_MESSAGE,
            f"Record size {length} is less than the minimum record overhead ({MIN_MESSAGE_OVERHEAD})",
        )
    if left < HEADER_UP_TO_MAGIC:
        return None
    magic = records[at + MAGIC_AT]
    if magic > MAGIC_V2:
        signed = magic - 256 if magic > 127 else magic
        raise InvalidProduce(Errors.CORRUPT_MESSAGE, f"Invalid magic found in record: {signed}")
    size = int(length) + LOG_OVERHEAD
    return size if size <= left else None


def _preparing(
    records: memoryview, rules: AppendRules, now_ms: int, from_client: bool
) -> Work[tuple[memoryview, BatchHeader] | None]:
    meter = Meter()
    first, several = yield from survey(records, meter)
    if first is None:
        return None
    for at, header in iter_headers(records):
        if meter.due(0):
            yield None
        if header.size < LARGE:
            _check_envelope(records, at, header, rules, from_client)
        else:
            yield partial(_check_envelope, records, at, header, rules, from_client)
    codec_of(first.codec)  # an unknown one is refused
    if from_client and (several or rules.must_look_inside(first, now_ms)):
        return (yield from _look_inside(records, rules, now_ms))
    check_batch(first, first, rules.topic._replace(from_client=from_client))
    batch = records[: first.size]
    if from_client and rules.topic.compacted:
        payload: bytes = yield partial(payload_of, batch, first)
        if not (yield from _all_have_keys(payload, first.count)):
            return (yield from _look_inside(records, rules, now_ms))
    codec = rules.codec
    if codec is not None and codec != first.codec and not first.is_control:
        recompressed: bytearray = yield partial(_recompress, batch, first, codec, rules.topic.level)
        _check_size(len(recompressed), rules)
        batch = memoryview(recompressed)
    return _stamp(batch, read_header(batch), rules, now_ms)


def _check_envelope(records: memoryview, at: int, header: BatchHeader, rules: AppendRules, from_client: bool) -> None:
    if header.magic >= MAGIC_V2 and from_client and header.base_offset != 0:
        raise _silent(
            Errors.INVALID_RECORD,
            f"The baseOffset of the record batch in the append to {rules.topic.topic_partition} should be 0, "
            f"but it is {header.base_offset}",
        )
    if from_client:
        _check_size(header.size, rules)
    if not check_crc(records, at, header.size):
        raise _silent(
            Errors.CORRUPT_MESSAGE,
            f"Record is corrupt (stored crc = {header.crc}) in topic partition {rules.topic.topic_partition}.",
        )


def _check_size(size: int, rules: AppendRules) -> None:
    if size > rules.max_bytes:
        raise _silent(
            Errors.MESSAGE_TOO_LARGE,
            f"The record batch size in the append to {rules.topic.topic_partition} is {size} bytes which exceeds "
            f"the maximum configured value of {rules.max_bytes}.",
        )


def _all_have_keys(payload: bytes, count: int) -> Work[bool]:
    """Whether each of the `count` records has a key. False too where that can't be told: a closer look will tell.

    A third of the time of reading the records properly, which compacted topics would pay for every batch.
    """
    at = 0
    try:
        for number in range(count):
            if number % _KEYS_A_STEP == _KEYS_A_STEP - 1:
                yield None
            size, shift = payload[at], 7
            at += 1
            if size > 0x7F:
                size &= 0x7F
                while True:
                    byte = payload[at]
                    at += 1
                    size |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
            end = at + (size >> 1)
            at += 1  # attributes; then timestamp and offset delta
            while payload[at] > 0x7F:
                at += 1
            at += 1
            while payload[at] > 0x7F:
                at += 1
            if payload[at + 1] & 1 or size & 1:  # a zigzag varint is negative
                return False
            at = end
    except IndexError:
        return False
    return at == len(payload)


def _look_inside(records: memoryview, rules: AppendRules, now_ms: int) -> Work[tuple[memoryview, BatchHeader]]:
    valid = yield from validating(records, rules.topic, base_offset=0, leader_epoch=-1, now=now_ms)
    if valid.rebuilt:
        _check_size(len(valid.records), rules)
    return valid.records, read_header(valid.records)


def _recompress(batch: memoryview, header: BatchHeader, codec: Codec, level: int | None) -> bytearray:
    """The batch with another codec; its records stay as they are, unread."""
    payload = payload_of(batch, header)
    attributes = header.attributes & ~CODEC_MASK | codec
    return pack(header._replace(attributes=attributes), payload, level)


def _stamp(batch: memoryview, header: BatchHeader, rules: AppendRules, now_ms: int) -> tuple[memoryview, BatchHeader]:
    """The batch with the topic's timestamp type, and the broker's time where that is LogAppendTime."""
    if rules.log_append_time:
        set_max_timestamp(batch, 0, header, LOG_APPEND_TIME, now_ms)
    elif header.is_log_append_time:
        set_max_timestamp(batch, 0, header, CREATE_TIME, header.max_timestamp)
    else:
        return batch, header
    return batch, read_header(batch)


def read_batches(records: memoryview, log_end_offset: int) -> list[tuple[int, BatchHeader]]:
    """(position, header) of a leader's batches, for its follower: whole ones only, checked and in order.

    KafkaError CORRUPT_MESSAGE for a wrong CRC, OFFSET_OUT_OF_RANGE for offsets that do not follow `log_end_offset`.
    """
    batches = list(iter_headers(records))
    next_offset = log_end_offset
    for at, header in batches:
        if not check_crc(records, at, header.size):
            raise _silent(Errors.CORRUPT_MESSAGE, f"the leader sent a batch with a wrong CRC at {header.base_offset}")
        if header.base_offset < next_offset:
            raise _silent(
                Errors.OFFSET_OUT_OF_RANGE, f"the leader sent offset {header.base_offset}, expected {next_offset}"
            )
        next_offset = header.last_offset + 1
    return batches


def _silent(code: Errors, why: str | None) -> KafkaError:
    """An error with a reason that is not sent to clients."""
    error = KafkaError(code)
    if why:
        error.add_note(why)
    return error
