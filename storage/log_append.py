"""Appending to a log, but for the common case: odd batches of clients, coordinators' records, what a leader sent.

Each is done in one go, or in turn (append_queue) with the write elsewhere: then nothing of the log has changed until
the write is done, and a log that was let go of meanwhile has not been appended to. What takes long to check or convert
is done in turn as well, in steps; so is what is large to write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from functools import partial
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from pybroker.protocol.records.header import MAGIC_V2, BatchHeader, iter_headers
from pybroker.protocol.work import finish
from pybroker.storage import log_flush
from pybroker.storage.append import prepare, preparing, read_batches
from pybroker.storage.append_queue import LARGE_WRITE, AppendQueue
from pybroker.storage.log_truncate import truncate_fully_and_start_at
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


class _Write(NamedTuple):
    """Batches that are ready to be written behind the last one of `segment`; `batches` are their headers."""

    segment: Segment
    records: memoryview
    batches: list[BatchHeader]
    append_time: int = -1


def append_checked(
    log: Log, records: memoryview, leader_epoch: int, version: int, from_client: bool
) -> AppendInfo | Awaitable[AppendInfo]:
    """The general append: any format and setting, control batches; and all refusals. See Log.append_as_leader."""
    now_ms = log.host.clock.now_ms()
    if from_client and _takes_long(log, records, now_ms):
        queue = log.queue = AppendQueue(log)
        return queue.put(partial(append_in_turn, log, records, leader_epoch, version, from_client))
    prepared = prepare(records, log.rules, version=version, now_ms=now_ms, from_client=from_client)
    ready = _place(log, prepared, leader_epoch, now_ms, from_client)
    if isinstance(ready, AppendInfo):
        return ready
    _write(log, ready)
    return _answer(log, ready)


async def append_in_turn(
    log: Log, records: memoryview, leader_epoch: int, version: int, from_client: bool
) -> AppendInfo | Awaitable[AppendInfo]:
    """As append_checked; what takes long is done in steps."""
    now_ms, workshop = log.host.clock.now_ms(), log.host.workshop
    work = preparing(records, log.rules, version=version, now_ms=now_ms, from_client=from_client)
    in_steps = from_client and workshop is not None and _takes_long(log, records, now_ms)
    prepared = await workshop.do(work) if in_steps and workshop is not None else finish(work)
    if log.active.fd < 0:  # the log has been let go of meanwhile
        raise log.too_late()
    leader_epoch = max(leader_epoch, log.latest_epoch)  # this leader may have begun a new epoch meanwhile
    ready = _place(log, prepared, leader_epoch, now_ms, from_client)
    if isinstance(ready, AppendInfo):
        return ready
    await _write_elsewhere(log, ready)
    return _answer(log, ready)


def _takes_long(log: Log, records: memoryview, now_ms: int) -> bool:
    """Whether there is a workshop, and something for it to do: to check and write much, or to convert."""
    return log.host.workshop is not None and (len(records) > LARGE_WRITE or log.rules.takes_long(records, now_ms))


def _place(
    log: Log, prepared: tuple[memoryview, BatchHeader] | None, leader_epoch: int, now_ms: int, from_client: bool
) -> AppendInfo | _Write:
    """The batch with its offset and the segment for it, or the answer where there is nothing to write."""
    if prepared is None:  # nothing whole was sent, which only Produce 0-2 may
        return AppendInfo(-1, -1, -1, 0, log.log_start_offset)
    batch, header = prepared
    if header.producer_id >= 0:
        duplicate = _check_producer(log, batch, header, from_client)
        if duplicate is not None:
            return duplicate
    first = log.log_end_offset
    segment = log.make_room(len(batch), first + header.last_offset_delta, header.max_timestamp)
    if leader_epoch != log.latest_epoch:
        log.assign_epoch(leader_epoch, first)
    ASSIGN.pack_into(batch, 0, first, header.length, leader_epoch)
    append_time = now_ms if log.rules.log_append_time else -1
    return _Write(segment, batch, [header._replace(base_offset=first)], append_time)


def _answer(log: Log, done: _Write) -> AppendInfo | Awaitable[AppendInfo]:
    header, size = done.batches[0], len(done.records)
    first, last = header.base_offset, header.last_offset
    info = AppendInfo(first, last, header.max_timestamp, size, log.log_start_offset, done.append_time)
    return info if last < log.flush_at else log_flush.flush_then(log, info)


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(log: Log, ready: _Write) -> None:
    started = perf_counter()
    try:
        ready.segment.write(ready.records, len(ready.batches))
        if len(ready.records) <= LARGE_WRITE:  # what a large one takes says little about the disk
            log.host.writer(log).took(perf_counter() - started)
        _written(log, ready)
    except OSError as error:
        raise log.storage_error(error) from error


async def _write_elsewhere(log: Log, ready: _Write) -> None:
    segment = ready.segment
    if segment.fd < 0:  # the log has been let go of
        raise log.too_late()
    file = segment.file.retain()
    write = partial(segment.write, ready.records, len(ready.batches))
    try:
        await log.host.writer(log).write(write, len(ready.records))
        if segment.fd != file.fd:  # so it has meanwhile; the file's number is not another's before the release
            raise log.too_late()
        _written(log, ready)
    except OSError as error:
        raise log.storage_error(error) from error
    finally:
        file.release()


def _written(log: Log, done: _Write) -> None:
    """The bytes are there: what follows from that. OSError."""
    segment, batches = done.segment, done.batches
    first = batches[0]
    sizes = [len(done.records)] if len(batches) == 1 else [header.size for header in batches]
    position = segment.written(
        [Written(size, header.last_offset, header.max_timestamp) for size, header in zip(sizes, batches, strict=True)]
    )
    log.log_end_offset = batches[-1].last_offset + 1
    one_batch = len(batches) == 1 and first.magic == MAGIC_V2
    log.tail_offset, log.tail_position = (first.base_offset if one_batch else -1), position
    at = 0
    for size, header in zip(sizes, batches, strict=True):
        if header.producer_id >= 0:
            _update_producer(log, segment, header, done.records[at : at + size])
        at += size


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


# --- following --------------------------------------------------------------------------------------------------------


def append_as_follower(log: Log, records: memoryview) -> AppendInfo:
    """Write what the leader sent, as it is; a batch that is cut off at the end is passed over.

    Raises KafkaError CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE when the offsets do not follow the log's end,
    KAFKA_STORAGE_ERROR.
    """
    _begin_inside(log, records)
    batches = read_batches(records, log.log_end_offset)
    for run in _runs(log, records, batches):
        _write(log, run)
    return _followed(log, batches)


async def append_as_follower_in_turn(log: Log, records: memoryview) -> AppendInfo:
    """As append_as_follower."""
    _begin_inside(log, records)
    check = partial(read_batches, records, log.log_end_offset)
    workshop, first = log.host.workshop, next((header for _, header in iter_headers(records)), None)
    large = first is not None and first.size > LARGE_WRITE  # a thread gives up the interpreter lock for its CRC
    batches = await workshop.call(check) if workshop is not None and large else check()
    if log.gone is not None:
        raise log.too_late()
    for run in _runs(log, records, batches):
        await _write_elsewhere(log, run)
    return _followed(log, batches)


def _followed(log: Log, batches: list[tuple[int, BatchHeader]]) -> AppendInfo:
    if not batches:
        return AppendInfo(-1, -1, -1, 0, log.log_start_offset)
    first, last = batches[0][1], batches[-1][1]
    max_timestamp = max(header.max_timestamp for _, header in batches)
    size = batches[-1][0] + last.size - batches[0][0]
    return AppendInfo(first.base_offset, last.last_offset, max_timestamp, size, log.log_start_offset)


def _begin_inside(log: Log, records: memoryview) -> None:
    """An empty log whose start lies inside the leader's first batch begins where the batch does: DeleteRecords moves
    the leader's start to any record, but batches stay whole. Kafka's
    Partition.appendRecordsToFollowerOrFutureReplica."""
    if log.log_end_offset == log.log_start_offset:
        first = next((header for _, header in iter_headers(records)), None)
        if first is not None and first.base_offset < log.log_end_offset <= first.last_offset:
            truncate_fully_and_start_at(log, first.base_offset)


def _runs(log: Log, records: memoryview, batches: list[tuple[int, BatchHeader]]) -> Iterator[_Write]:
    """The batches in runs that fit into one segment; each has to be written before the next is asked for."""
    done = 0
    while done < len(batches):
        run = _run(log, records, batches, done)
        yield run
        done += len(run.batches)


def _run(log: Log, records: memoryview, batches: list[tuple[int, BatchHeader]], start: int) -> _Write:
    """What can be written in one go of the batches from number `start` on."""
    at, first = batches[start]
    segment = log.make_room(first.size, first.last_offset, first.max_timestamp, first.base_offset)
    room = segment.max_size - segment.size
    run: list[BatchHeader] = []
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
        run.append(header)
        end = batch_at + header.size
    return _Write(segment, records[at:end], run)
