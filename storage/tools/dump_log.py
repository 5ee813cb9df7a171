"""The batches and records of a log file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pybroker.protocol.compression import Codec
from pybroker.protocol.errors import KafkaError
from pybroker.protocol.records import legacy
from pybroker.protocol.records.header import MAGIC_V0, MAGIC_V2, BatchHeader
from pybroker.protocol.records.record import Record, increment_sequence, iter_records, read_end_txn_marker
from pybroker.storage.recovery import base_offset_of
from pybroker.storage.scanner import BrokenBatch
from pybroker.storage.tools.items import Item, OptionalNumber, Options, note, problem
from pybroker.storage.tools.walker import read_batch, walk_log

MOST_INSIDE = 128 << 20  # bytes of a batch that is looked into, and of what it decompresses to


def dump_log(path: Path, options: Options) -> Iterator[Item]:
    """Batches, with `options.deep` also their records; then what is wrong behind them. OSError."""
    yield note(f"Log starting offset: {base_offset_of(path.name) or 0}")
    descriptor = os.open(path, os.O_RDONLY)
    last = -1
    try:
        size = os.fstat(descriptor).st_size
        for position, header, valid in walk_log(descriptor, size):
            if not options.only_problems:
                yield Item("batch", batch_fields(position, header, valid))
            if not valid:
                yield problem("a batch's checksum does not match", position)
            if header.last_offset <= last:
                yield problem(f"offset {header.last_offset} follows offset {last}", position)
            last = header.last_offset
            if options.deep:
                yield from _inside(descriptor, position, header, options)
    except BrokenBatch as broken:
        yield _end(descriptor, size, broken)
    finally:
        os.close(descriptor)


def _end(descriptor: int, size: int, broken: BrokenBatch) -> Item:
    """Where a file breaks; zeros up to its end are what `preallocate` leaves, or a crash."""
    position = broken.position
    while piece := os.pread(descriptor, 1 << 20, position):
        if piece.count(0) != len(piece):
            return problem(broken.why, broken.position)
        position += len(piece)
    return problem(f"nothing but zeros from here on, {size - broken.position} bytes", broken.position)


def batch_fields(position: int, header: BatchHeader, valid: bool) -> dict[str, Any]:
    """A batch, or a message of magic 0 or 1, in Kafka's names and order."""
    fields: dict[str, Any]
    if header.magic >= MAGIC_V2:
        sequence = header.base_sequence
        fields = {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.count,
            "baseSequence": sequence,
            "lastSequence": -1 if sequence < 0 else increment_sequence(sequence, header.last_offset_delta),
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": OptionalNumber(header.base_timestamp if header.has_delete_horizon else None),
        }
    else:
        fields = {"offset": header.base_offset}
    codec = header.codec
    return fields | {
        "position": position,
        _timestamp_name(header): header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": Codec(codec).name.lower() if codec in Codec._value2member_map_ else str(codec),
        "crc": header.crc,
        "isvalid": valid,
    }


def _timestamp_name(header: BatchHeader) -> str:
    if header.magic == MAGIC_V0:
        return "NoTimestampType"
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _inside(descriptor: int, position: int, header: BatchHeader, options: Options) -> Iterator[Item]:
    if header.size > MOST_INSIDE:
        yield problem(f"a batch of {header.size} bytes is too large to be looked into", position)
        return
    batch = read_batch(descriptor, position, header.size)
    try:
        if header.magic >= MAGIC_V2:
            records = iter_records(batch, header, MOST_INSIDE)
        else:
            records = legacy.iter_records(batch, header, MOST_INSIDE)
        for record in records:
            if not options.only_problems:
                yield Item("record", _record_fields(record, header, options))
    except (KafkaError, ValueError) as error:
        yield problem(f"the records of the batch can't be read: {error}", position)


def _record_fields(record: Record, header: BatchHeader, options: Options) -> dict[str, Any]:
    key, value = record.key, record.value
    fields: dict[str, Any] = {
        "offset": record.offset,
        _timestamp_name(header): record.timestamp,
        "keySize": -1 if key is None else len(key),
        "valueSize": -1 if value is None else len(value),
    }
    if header.magic >= MAGIC_V2:
        fields["sequence"] = record.sequence
        fields["headerKeys"] = HeaderKeys(name.decode("utf-8", "replace") for name, _ in record.headers)
    if header.is_control:
        marker = read_end_txn_marker(record)
        if marker is not None:
            fields |= {
                "endTxnMarker": "COMMIT" if marker.commit else "ABORT",
                "coordinatorEpoch": marker.coordinator_epoch,
            }
    elif options.data:
        if options.decoder is not None:
            fields |= dict(zip(("key", "payload"), options.decoder(key, value), strict=True))
        else:
            fields |= {"key": _text(key), "payload": _text(value)}
    return {name: value for name, value in fields.items() if value is not None}


class HeaderKeys(list[str]):
    """Names of headers, as Kafka prints them."""

    def __str__(self) -> str:
        return f"[{','.join(self)}]"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")
