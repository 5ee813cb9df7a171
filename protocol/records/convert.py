"""Batches that can't be stored as they came.

`validating` does what `LogValidator` does with produced batches whose records must be looked at: messages of
magic 0 and 1 (Produce 0-2), a topic with its own compression.type, compacted topics, validate.records. One append is
one batch: a plain message set of magic 0 or 1 becomes ONE magic 2 batch, a compressed wrapper another with its codec.

That costs microseconds per record, so it is work in steps (see protocol/work.py).
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import NamedTuple

from pybroker.protocol.compression import DEFAULT_LIMIT, Codec, codec_of
from pybroker.protocol.records import legacy, record
from pybroker.protocol.records.header import (
    ATTRIBUTES_AT,
    CONTROL_FLAG,
    CRC_AT,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    MAGIC_V0,
    MAGIC_V1,
    MAGIC_V2,
    MAX_TIMESTAMP_AT,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    UINT32,
    BatchHeader,
    Buffer,
    crc32c,
    ensure_crc,
    iter_headers,
    read_header,
)
from pybroker.protocol.records.reading import LARGE, Meter, contents, reading, survey
from pybroker.protocol.records.record import BatchBuilder, invalid
from pybroker.protocol.records.validate import BatchFacts, TopicRules, check_batch, checking
from pybroker.protocol.work import Work

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_OVERFLOW = Struct(">qi")
_KNOWN_ATTRIBUTES = 0x7F


class Validated(NamedTuple):
    """Batches ready to be written: offsets, leader epoch, timestamps and CRCs are set.

    records: the caller's own buffer where it could be kept, else a new one (`rebuilt`). max_timestamp_offset is the
    last offset of the batch (or message of magic 0 and 1) that max_timestamp, in ms or -1, is in.
    """

    records: memoryview
    rebuilt: bool
    last_offset: int
    max_timestamp: int
    max_timestamp_offset: int


def validating(
    buf: Buffer,
    rules: TopicRules,
    *,
    base_offset: int,
    leader_epoch: int,
    now: int,
    limit: int = DEFAULT_LIMIT,
) -> Work[Validated]:
    """Checks every batch and record in `buf` against a topic's rules and gives them offsets from `base_offset` on.

    now: broker time in ms, for LogAppendTime and the range of timestamps. limit: bytes a batch may decompress to.
    Raises KafkaError with Kafka's codes and messages: CORRUPT_MESSAGE (structure, CRC), INVALID_RECORD,
    RecordsRejected, UNSUPPORTED_FOR_MESSAGE_FORMAT, UNKNOWN_SERVER_ERROR (codec, negative timestamps), and
    MESSAGE_TOO_LARGE above the limit. Writes into `buf` if it can be written to and the batch can stay as it is.
    """
    view, meter = memoryview(buf), Meter()
    first, several = yield from survey(view, meter)
    if first is None:
        raise invalid("Record batch has no batches at all")
    source = yield from _source_codec(view, meter)
    target = source if rules.codec is None else codec_of(rules.codec)
    if (first.magic >= MAGIC_V2 or source) and several:
        raise invalid("Compressed outer record has more than one batch")
    in_place = first.magic == rules.magic and source == target and not (source and first.magic == MAGIC_V0)
    if source == Codec.NONE and first.is_control:  # control records are compressed only if written so
        in_place = True
    total = BatchFacts(0, NO_TIMESTAMP, NO_TIMESTAMP, True)
    payload: bytes | None = None
    for at, header in iter_headers(view):
        check_batch(header, first, rules)
        piece = view[at : at + header.size]
        if header.magic >= MAGIC_V2 or header.codec:
            payload = yield partial(contents, piece, header, limit)
        records = yield from reading(piece, header, limit, payload=payload, check_inner=True)
        facts = yield from checking(records, header, rules, meter, now=now, expected_offset=total.record_count)
        if (source or target) and first.magic > MAGIC_V0 and rules.magic > MAGIC_V0 and not facts.consecutive:
            in_place = False  # some old clients number inner messages wrongly; brokers have always put that right
        total = _together(total, facts) if several else facts
    if in_place:
        return (yield from _assign(view, total, several, rules, base_offset, leader_epoch, now))
    append_time = now if rules.timestamp_type == LOG_APPEND_TIME else NO_TIMESTAMP
    if rules.magic >= MAGIC_V2 and _can_keep_payload(first, total, payload):
        kept = payload or b""
        built = yield from _with_codec(first, total, kept, rules, target, base_offset, leader_epoch, append_time)
    else:
        built = yield from _rebuild(view, payload, rules, target, base_offset, leader_epoch, append_time, limit)
    return _describe(built, total, rules, target, base_offset, append_time)


def _source_codec(view: memoryview, meter: Meter) -> Work[Codec]:
    source = Codec.NONE
    for at, header in iter_headers(view):
        if meter.due(0):
            yield None
        if header.size < LARGE:
            ensure_crc(view, at, header.size)
        else:
            yield partial(ensure_crc, view, at, header.size)
        if header.codec:
            source = codec_of(header.codec)
    return source


def _together(some: BatchFacts, more: BatchFacts) -> BatchFacts:
    return BatchFacts(
        some.record_count + more.record_count,
        min(some.min_timestamp, more.min_timestamp),
        max(some.max_timestamp, more.max_timestamp),
        some.consecutive and more.consecutive,
    )


def _assign(
    view: memoryview, total: BatchFacts, several: bool, rules: TopicRules, base_offset: int, leader_epoch: int, now: int
) -> Work[Validated]:
    """Offsets, leader epoch and timestamps written into batches that stay as they are; several are messages of magic 0
    or 1, with one record each."""
    if view.readonly:
        view = memoryview(bytearray(view))
    append_time = now if rules.timestamp_type == LOG_APPEND_TIME else None
    last, meter = base_offset - 1, Meter()
    newest, newest_at = NO_TIMESTAMP, -1
    end = 0
    for at, header in iter_headers(view):
        if meter.due(0):
            yield None
        last += 1 if several else total.record_count
        end = at + header.size
        batch_newest = max(header.max_timestamp, NO_TIMESTAMP) if several else total.max_timestamp
        if append_time is not None:
            batch_newest = append_time
        if batch_newest > newest:
            newest, newest_at = batch_newest, last
        changed = (header.timestamp_type, header.max_timestamp) != (rules.timestamp_type, batch_newest)
        if header.magic >= MAGIC_V2:
            _INT64.pack_into(view, at, last - header.last_offset_delta)
            _INT32.pack_into(view, at + LEADER_EPOCH_AT, leader_epoch)
            if changed:
                set_max_timestamp(view, at, header, rules.timestamp_type, batch_newest)
        else:
            _INT64.pack_into(view, at, last)
            if changed and header.magic == MAGIC_V1:
                legacy.set_timestamp(view, at, header.size, rules.timestamp_type, batch_newest)
    return Validated(view[:end], False, last, newest, newest_at)


def set_max_timestamp(
    buf: bytearray | memoryview, at: int, header: BatchHeader, timestamp_type: int, timestamp: int
) -> None:
    """Gives the magic 2 batch at `at` a timestamp type and max timestamp in place, and its CRC anew. Attribute bits
    without a meaning are cleared, as Kafka does here."""
    attributes = header.attributes & _KNOWN_ATTRIBUTES & ~LOG_APPEND_TIME_FLAG
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
    _INT16.pack_into(buf, at + ATTRIBUTES_AT, attributes)
    _INT64.pack_into(buf, at + MAX_TIMESTAMP_AT, timestamp)
    UINT32.pack_into(buf, at + CRC_AT, crc32c(memoryview(buf)[at + ATTRIBUTES_AT : at + header.size]))


def _rebuild(
    view: memoryview,
    payload: bytes | None,
    rules: TopicRules,
    codec: Codec,
    base_offset: int,
    leader_epoch: int,
    append_time: int,
    limit: int,
) -> Work[bytearray]:
    """The records of all batches in one batch (or message set) of the topic's format and codec, numbered anew."""
    builder: BatchBuilder | legacy.SetBuilder
    if rules.magic >= MAGIC_V2:
        first = read_header(view)
        builder = BatchBuilder(
            base_offset, codec=codec, level=rules.level, leader_epoch=leader_epoch,
            timestamp_type=rules.timestamp_type, log_append_time=append_time, producer_id=first.producer_id,
            producer_epoch=first.producer_epoch, base_sequence=first.base_sequence,
            transactional=first.is_transactional, control=first.is_control,
        )  # fmt: skip
    else:
        builder = legacy.SetBuilder(
            magic=rules.magic, codec=codec, level=rules.level, timestamp_type=rules.timestamp_type,
            log_append_time=append_time, limit=limit,
        )  # fmt: skip
    offset, meter = base_offset, Meter()
    for at, header in iter_headers(view):
        records = yield from reading(view[at : at + header.size], header, limit, payload=payload)
        for found in records:
            builder.append_record(found._replace(offset=offset))
            offset += 1
            if meter.due_after(found):
                yield None
    built: bytearray = yield builder.build
    return built


def _can_keep_payload(header: BatchHeader, facts: BatchFacts, payload: bytes | None) -> bool:
    """Whether writing a magic 2 batch's records again would give the same bytes: deltas count up from the first."""
    if (
        header.magic < MAGIC_V2
        or not payload
        or not facts.record_count
        or not facts.consecutive
        or header.is_log_append_time
        or facts.min_timestamp < NO_TIMESTAMP
    ):
        return False
    at = 0
    while payload[at] >= 0x80:  # the first record's length
        at += 1
    return payload[at + 2] == 0  # then attributes, then its timestamp delta


def _with_codec(
    header: BatchHeader, facts: BatchFacts, payload: bytes, rules: TopicRules, codec: Codec, base_offset: int,
    leader_epoch: int, append_time: int,
) -> Work[bytearray]:  # fmt: skip
    log_append_time = rules.timestamp_type == LOG_APPEND_TIME
    flags = header.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG) | (LOG_APPEND_TIME_FLAG if log_append_time else 0)
    changed = header._replace(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=flags | codec,
        max_timestamp=append_time if log_append_time else facts.max_timestamp,
    )
    built: bytearray = yield partial(record.pack, changed, payload, rules.level)
    return built


def _describe(
    built: bytearray, total: BatchFacts, rules: TopicRules, codec: Codec, base_offset: int, append_time: int
) -> Validated:
    """`total` are the facts of all records that are in it."""
    last = base_offset + total.record_count - 1
    if rules.magic == MAGIC_V0:
        newest = NO_TIMESTAMP
    elif rules.timestamp_type == LOG_APPEND_TIME:
        newest = append_time
    else:
        newest = total.max_timestamp
    newest_at = last
    if newest == NO_TIMESTAMP:
        newest_at = -1
    elif rules.magic < MAGIC_V2 and not codec:
        newest_at = next(header.base_offset for _, header in iter_headers(built) if header.max_timestamp == newest)
    return Validated(memoryview(built), True, last, newest, newest_at)
