"""Every recorded segment is read to what was sent, and built again to the same bytes."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.protocol.compression import Codec
from pybroker.protocol.records import record
from pybroker.protocol.records.header import MAGIC_V0, MAGIC_V2, check_crc, iter_headers
from pybroker.protocol.records.legacy import encode_set
from pybroker.protocol.records.legacy import iter_records as iter_legacy
from pybroker.protocol.records.record import EndTxnMarker, Record, build_batch, end_txn_batch, read_end_txn_marker

from .recorded import as_bytes, decode_log, recorded

LOGS = recorded()["logs"]
NAMES = [f"{log['partition']}/{log['file']}" for log in LOGS]


@pytest.mark.parametrize("log", LOGS, ids=NAMES)
def test_headers_and_crcs(log: dict[str, Any]) -> None:
    data = bytes.fromhex(log["hex"])
    end, next_offset = 0, int(log["file"].split(".")[0])
    for at, header in iter_headers(data):
        assert at == end
        assert check_crc(data, at, header.size)
        assert header.last_offset >= next_offset
        end, next_offset = at + header.size, header.last_offset + 1
    assert end == len(data)


@pytest.mark.parametrize(
    "log", [log for log in LOGS if log["sent"]], ids=lambda log: f"{log['partition']}/{log['file']}"
)
def test_records_are_what_was_sent(log: dict[str, Any]) -> None:
    data = bytes.fromhex(log["hex"])
    first = next(iter_headers(data))[1]
    sent = {message["offset"]: message for message in log["sent"]}
    found = decode_log(data)
    assert found
    for have in found:
        message = sent[have.offset]
        headers = tuple((name.encode(), as_bytes(value)) for name, value in message["headers"] or [])
        assert (have.key, have.value, have.headers) == (as_bytes(message["key"]), as_bytes(message["value"]), headers)
        if first.magic == MAGIC_V0:
            assert have.timestamp == -1
        elif not first.is_log_append_time:
            assert have.timestamp == message["ts"]


@pytest.mark.parametrize("log", LOGS, ids=NAMES)
def test_built_again_byte_for_byte(log: dict[str, Any]) -> None:
    data = bytes.fromhex(log["hex"])
    for at, header in iter_headers(data):
        batch = data[at : at + header.size]
        if header.magic < MAGIC_V2:
            records = list(iter_legacy(batch))
            again = encode_set(
                records, magic=header.magic, codec=header.codec, timestamp_type=header.timestamp_type,
                log_append_time=header.max_timestamp,
            )  # fmt: skip
            if header.codec != Codec.SNAPPY:  # our snappy library chooses other matches
                assert again == batch
            assert list(iter_legacy(again, check_inner=True)) == records
            continue
        records = list(record.iter_records(batch))
        again = build_batch(
            records, base_offset=header.base_offset, last_offset=header.last_offset, codec=header.codec,
            leader_epoch=header.leader_epoch, timestamp_type=header.timestamp_type,
            log_append_time=header.max_timestamp, base_timestamp=header.base_timestamp,
            delete_horizon=header.base_timestamp if header.has_delete_horizon else None,
            max_timestamp=header.max_timestamp, producer_id=header.producer_id, producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence, transactional=header.is_transactional, control=header.is_control,
        )  # fmt: skip
        if not header.codec and not header.is_log_append_time:  # there readers do not see the producer's timestamps
            assert again == batch
        assert list(record.iter_records(again)) == records


def test_logs_hold_every_codec_and_format() -> None:
    kinds = {(header.magic, header.codec) for log in LOGS for _, header in iter_headers(bytes.fromhex(log["hex"]))}
    assert kinds >= {(magic, codec) for magic in (0, 1) for codec in range(4)} | {(2, codec) for codec in range(5)}


def test_log_append_time_is_every_records_timestamp() -> None:
    data = next(bytes.fromhex(log["hex"]) for log in LOGS if log["partition"] == "logappend-0")
    for at, header in iter_headers(data):
        records = list(record.iter_records(data[at : at + header.size]))
        assert {each.timestamp for each in records} == {header.max_timestamp}


def test_markers() -> None:
    seen: list[EndTxnMarker | None] = []
    for log in LOGS:
        data = bytes.fromhex(log["hex"])
        for at, header in iter_headers(data):
            if not header.is_control:
                continue
            (only,) = record.iter_records(data[at : at + header.size])
            marker = read_end_txn_marker(only)
            assert marker is not None
            again = end_txn_batch(
                marker, producer_id=header.producer_id, producer_epoch=header.producer_epoch,
                timestamp=header.base_timestamp, base_offset=header.base_offset, leader_epoch=header.leader_epoch,
            )  # fmt: skip
            assert again == data[at : at + header.size]
            assert len(again) == 78
            seen.append(marker)
    assert {marker.commit for marker in seen if marker} == {True, False}


def test_compacted_segments_have_holes_and_delete_horizons() -> None:
    headers = [
        header
        for log in LOGS
        if log["case"] == "compact-after"
        for _, header in iter_headers(bytes.fromhex(log["hex"]))
    ]
    assert any(header.has_delete_horizon for header in headers)
    assert any(header.count < header.last_offset_delta + 1 for header in headers)


def test_record_type() -> None:
    assert Record(1, 2, None, b"v") == (1, 2, None, b"v", (), -1)
