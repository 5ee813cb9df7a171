"""What Kafka demands of produced batches before it appends them (`LogValidator`).

Everything that needs no look at the records is `check_batch`; `checking` reads every record of one batch. Both
raise KafkaError with Kafka's code and message. In a Produce answer only RecordsRejected's message is sent to the
client; the others go to the broker's log, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    MAGIC_V2,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
)
from pybroker.protocol.records.reading import Meter
from pybroker.protocol.records.record import Record, invalid
from pybroker.protocol.work import Work

MAX_INT64 = (1 << 63) - 1
# Records that are named in one answer. Kafka has no such bound; a compressed batch can hold millions of bad records.
MAX_RECORD_ERRORS = 100_000


class TopicRules(NamedTuple):
    """What a topic's settings ask of a batch that comes in.

    magic: the format to store. codec: None keeps the producer's. level: of that codec, None its default.
    before_max_ms, after_max_ms: how far a CreateTime may lie before and after now. compacted: keys must not be null.
    from_client: False for the broker's own writers, who may write control batches.
    """

    topic_partition: str
    magic: int = MAGIC_V2
    codec: int | None = None
    level: int | None = None
    timestamp_type: int = CREATE_TIME
    before_max_ms: int = MAX_INT64
    after_max_ms: int = MAX_INT64
    compacted: bool = False
    from_client: bool = True


class RecordsRejected(KafkaError):
    """Records that break a topic's rule. record_errors: (index in the batch, message), the answer's RecordErrors."""

    def __init__(self, code: Errors, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class BatchFacts(NamedTuple):
    """What reading a batch's records showed: how many, their smallest and largest timestamps (ms, -1 for none), and
    whether their offsets count up by one from `expected_offset`."""

    record_count: int
    min_timestamp: int
    max_timestamp: int
    consecutive: bool


def check_batch(header: BatchHeader, first: BatchHeader, rules: TopicRules) -> None:
    """The rules a batch's header must keep, `first` being the header of the first batch of the same append."""
    where = rules.topic_partition
    if header.magic != first.magic:
        raise invalid(
            f"Batch magic {header.magic} is not the same as the first batch's magic byte {first.magic} "
            f"in topic partition {where}"
        )
    if rules.from_client:
        _check_client_batch(header, where)
    if rules.magic < MAGIC_V2:
        for flag, what in ((header.is_transactional, "Transactional"), (header.has_producer_id, "Idempotent")):
            if flag:
                raise KafkaError(
                    Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                    f"{what} records cannot be used with magic version {rules.magic}",
                )


def _check_client_batch(header: BatchHeader, where: str) -> None:
    if header.magic >= MAGIC_V2:
        span = header.last_offset_delta + 1
        offsets = f"[{header.base_offset}, {header.last_offset}]"
        if span <= 0:
            raise invalid(f"Batch has an invalid offset range: {offsets} in topic partition {where}")
        if header.count <= 0:
            raise invalid(f"Invalid reported count for record batch: {header.count} in topic partition {where}")
        if span != header.count:
            raise invalid(
                f"Inconsistent batch offset range {offsets} and count of records {header.count} "
                f"in topic partition {where}"
            )
    if header.is_control:
        raise invalid(f"Clients are not allowed to write control records in topic partition {where}")
    if header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0:
        raise invalid(
            f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id} "
            f"in topic partition {where}"
        )


def checking(
    records: Iterable[Record], header: BatchHeader, rules: TopicRules, meter: Meter, *, now: int,
    expected_offset: int = 0,
) -> Work[BatchFacts]:
    """Reads all records of one batch, in steps; `records` raises what is wrong with their structure.

    Raises RecordsRejected: INVALID_TIMESTAMP if any timestamp is out of range (now: ms), else INVALID_RECORD for null
    keys where the topic is compacted.
    """
    errors: list[tuple[int, str]] = []
    code = Errors.INVALID_RECORD
    check_time = rules.timestamp_type == CREATE_TIME
    wrong_type = header.timestamp_type == LOG_APPEND_TIME
    earliest, latest = now - rules.before_max_ms, now + rules.after_max_ms
    no_key = f"Compacted topic cannot accept message without key in topic partition {rules.topic_partition}"
    count, oldest, newest, consecutive = 0, MAX_INT64, NO_TIMESTAMP, True
    for index, record in enumerate(records):
        if meter.due_after(record):
            yield None
        count += 1
        timestamp = record.timestamp
        if timestamp > newest:
            newest = timestamp
        if timestamp < oldest:
            oldest = timestamp
        if record.offset != expected_offset:
            consecutive = False
        expected_offset += 1
        if rules.compacted and record.key is None:
            error = no_key
        elif check_time and timestamp != NO_TIMESTAMP:
            if earliest <= timestamp <= latest:
                continue
            code, error = Errors.INVALID_TIMESTAMP, _out_of_range(record, earliest, latest)
        elif wrong_type:
            code, error = (
                Errors.INVALID_TIMESTAMP,
                f"Invalid timestamp type in message {index}. Producer should not set timestamp type to LogAppendTime.",
            )
        else:
            continue
        errors.append((index, error))
        if len(errors) == MAX_RECORD_ERRORS:
            break
    if errors:
        raise RecordsRejected(code, _summary(code, errors), errors)
    return BatchFacts(count, oldest if count else NO_TIMESTAMP, newest, consecutive)


def _out_of_range(record: Record, earliest: int, latest: int) -> str:
    def wrapped(value: int) -> int:  # bounds of Long.MAX_VALUE overflow in Kafka's message too
        return (value + MAX_INT64 + 1) % (1 << 64) - MAX_INT64 - 1

    return (
        f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range. "
        f"The timestamp should be within [{wrapped(earliest)}, {wrapped(latest)}]"
    )


def _summary(code: Errors, errors: list[tuple[int, str]]) -> str:
    if code == Errors.INVALID_TIMESTAMP:
        return "One or more records have been rejected due to invalid timestamp"
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in errors[:3])
    return (
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )
