"""Appending to a log, but for the common case: odd batches of clients, coordinators' records, what a leader sent."""

from __future__ import annotations

from collections.abc import Awaitable
from struct import Struct
from typing import TYPE_CHECKING

from pybroker.protocol.records.header import MAGIC_V2, BatchHeader
from pybroker.storage import log_flush
from pybroker.storage.append import prepare, read_batches
from pybroker.storage.producer_state import last_sequence_of
from pybroker.storage.segment import Segment, Written
from pybroker.storage.txn_index import AbortedTransaction

if TYPE_CHECKING:
    from pybroker.storage.log import Log

ASSIGN = Struct(">qii")  # the beginning of a batch: base offset, length, leader epoch


class AppendInfo:
    """What an append did. Offsets are those of the log; times in ms, -1 for none.

    A duplicate has the offsets of the first time it was appended, and bytes 0. first_offset -1: there was nothing.
    """

    __slots__ = (
        "bytes",
        "duplicate",
        "first_offset",
        "last_offset",
        "log_append_time",
        "log_start_offset",
        "max_timestamp",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        size: int,
        log_start_offset: int,
        log_append_time: int = -1,
        duplicate: bool = False,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.bytes = size
        self.log_start_offset = log_start_offset
        self.log_append_time = log_append_time
        self.duplicate = duplicate


def append_checked(
    log: Log, records: memoryview, leader_epoch: int, version: int, from_client: bool
) -> AppendInfo | Awaitable[AppendInfo]:
    """The general append: any format and setting, control batches; and all refusals. See Log.append_as_leader."""
    now_ms = log.host.clock.now_ms()
    prepared = prepare(records, log.rules, version=version, now_ms=now_ms, from_client=from_client)
    if prepared is None:  # nothing whole was sent, which only Produce 0-2 may
        return AppendInfo(-1, -1, -1, 0, log.log_start_offset)
    batch, header = prepared
    if header.producer_id >= 0:
        duplicate = _check_producer(log, batch, header, from_client)
        if duplicate is not None:
            return duplicate
    first = log.log_end_offset
    last = first + header.last_offset_delta
    segment = log.make_room(len(batch), last, header.max_timestamp)
    if leader_epoch != log.latest_epoch:
        log.assign_epoch(leader_epoch, first)
    ASSIGN.pack_into(batch, 0, first, header.length, leader_epoch)
    try:
        position = segment.append(batch, len(batch), last, header.max_timestamp)
        log.log_end_offset = last + 1
        log.tail_offset, log.tail_position = first, position
        if header.producer_id >= 0:
            _update_producer(log, segment, header._replace(base_offset=first), batch)
    except OSError as error:
        raise log.storage_error(error) from error
    append_time = now_ms if log.rules.log_append_time else -1
    info = AppendInfo(first, last, header.max_timestamp, len(batch), log.log_start_offset, append_time)
    return info if last < log.flush_at else log_flush.flush_then(log, info)


def _check_producer(log: Log, batch: memoryview, header: BatchHeader, from_client: bool) -> AppendInfo | None:
    """The answer if the batch is a duplicate. KafkaError if its producer may not write it."""
    if header.is_control:
        log.producers.check_control(header, batch)
        return None
    found = log.producers.check(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        last_sequence_of(header.base_sequence, header.last_offset_delta),
        header.is_transactional,
        from_client=from_client,
    )
    if found is None:
        return None
    _, _, first, last, timestamp = found
    return AppendInfo(first, last, timestamp, 0, log.log_start_offset, timestamp, True)


def _update_producer(log: Log, segment: Segment, header: BatchHeader, batch: memoryview) -> None:
    """A batch with a producer id has been written: note it, and the transaction that it ends. OSError."""
    completed = log.producers.replay(header, batch)
    if completed is not None:
        log.has_markers = True
        if completed.aborted:
            segment.txn_index.append(
                AbortedTransaction(
                    completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
                )
            )


def append_as_follower(log: Log, records: memoryview) -> AppendInfo:
    """Write what the leader sent, as it is; a batch that is cut off at the end is passed over.

    Raises KafkaError CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE when the offsets do not follow the log's end,
    KAFKA_STORAGE_ERROR.
    """
    batches = read_batches(records, log.log_end_offset)
    if not batches:
        return AppendInfo(-1, -1, -1, 0, log.log_start_offset)
    done = 0
    while done < len(batches):
        done += _append_run(log, records, batches, done)
    first, last = batches[0][1], batches[-1][1]
    max_timestamp = max(header.max_timestamp for _, header in batches)
    size = batches[-1][0] + last.size - batches[0][0]
    return AppendInfo(first.base_offset, last.last_offset, max_timestamp, size, log.log_start_offset)


def _append_run(log: Log, records: memoryview, batches: list[tuple[int, BatchHeader]], start: int) -> int:
    """Write, in one go, the batches from number `start` on that fit into one segment; how many."""
    at, first = batches[start]
    segment = log.make_room(first.size, first.last_offset, first.max_timestamp, first.base_offset)
    room = segment.max_size - segment.size
    run: list[Written] = []
    end = at
    for number in range(start, len(batches)):
        batch_at, header = batches[number]
        if run and (
            batch_at + header.size - at > room
            or header.max_timestamp > segment.roll_after
            or header.last_offset > segment.max_offset
        ):
            break
        if header.leader_epoch > log.latest_epoch:
            log.assign_epoch(header.leader_epoch, header.base_offset)
        run.append(Written(header.size, header.last_offset, header.max_timestamp))
        end = batch_at + header.size
    one_batch = len(run) == 1 and first.magic == MAGIC_V2
    try:
        position = segment.append_all(records[at:end], run)
        log.log_end_offset = run[-1].last_offset + 1
        log.tail_offset, log.tail_position = (first.base_offset if one_batch else -1), position
        for batch_at, header in batches[start : start + len(run)]:
            if header.producer_id >= 0:
                _update_producer(log, segment, header, records[batch_at : batch_at + header.size])
    except OSError as error:
        raise log.storage_error(error) from error
    return len(run)
