"""What is refused and how, case by case as recorded from Kafka 3.9.2, and what is done to what is accepted."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol import compression
from pybroker.protocol.compression import Codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records import record
from pybroker.protocol.records.header import BatchHeader, crc32c, read_header
from pybroker.protocol.records.legacy import encode_message
from pybroker.protocol.records.record import Record
from pybroker.storage.append import InvalidProduce, RecordsRejected, prepare
from pybroker.storage.log import Log
from tests.storage.logs import NOW, append, batch, content, host, make_log

V2 = 13


def made(**fields: Any) -> memoryview:
    """A batch of two records whose header has these fields; the CRC is right unless given."""
    payload = fields.pop("payload", None)
    plain = bytes(batch(2))
    header = read_header(plain)
    body = plain[61:] if payload is None else payload
    header = header._replace(length=49 + len(body), **{name: value for name, value in fields.items() if name != "crc"})
    data = bytearray(61) + body
    struct.pack_into(">qiibIhiqqqhii", data, 0, *header)
    struct.pack_into(">I", data, 17, fields.get("crc", crc32c(memoryview(data)[21:])))
    return memoryview(data)


def patched(at: int, data: bytes) -> memoryview:
    """A good batch with bytes written over it, whatever the CRC says."""
    view = bytearray(batch(2))
    view[at : at + len(data)] = data
    return memoryview(view)


def old(value: bytes = b"x", *, magic: int = 1, offset: int = 0) -> bytes:
    return bytes(encode_message(offset, NOW if magic else -1, None, value, magic=magic))


def joined(*parts: bytes | memoryview) -> memoryview:
    return memoryview(bytearray(b"".join(bytes(part) for part in parts)))


RECORDS = bytes(batch(2))[61:]
ZIPPED = gzip.compress(RECORDS)
HEADER_KEY_NULL = bytes([16, 0, 0, 0, 1, 1, 2, 1, 1])

# Refused whatever the topic's settings: name, records, Produce version, code, whether the log start offset is known.
REFUSED: list[tuple[str, memoryview, int, Errors, bool]] = [
    ("bad CRC", made(crc=12345), V2, Errors.CORRUPT_MESSAGE, True),
    ("bad CRC, v7", made(crc=12345), 7, Errors.CORRUPT_MESSAGE, True),
    ("records empty", joined(), V2, Errors.INVALID_RECORD, False),
    ("10 zero bytes", joined(bytes(10)), V2, Errors.INVALID_RECORD, False),
    ("61 zero bytes", joined(bytes(61)), V2, Errors.CORRUPT_MESSAGE, False),
    ("cut by 3 bytes", batch(2)[:-3], V2, Errors.INVALID_RECORD, False),
    ("two batches", joined(batch(2), batch(2)), V2, Errors.INVALID_RECORD, False),
    ("count 0", made(count=0, last_offset_delta=-1, payload=b""), V2, Errors.INVALID_RECORD, True),
    ("count 0, last delta 0", made(count=0, last_offset_delta=0, payload=b""), V2, Errors.INVALID_RECORD, True),
    ("count 3, two records", made(count=3), V2, Errors.INVALID_RECORD, True),
    ("count 1, two records", made(count=1), V2, Errors.INVALID_RECORD, True),
    ("count -1", made(count=-1), V2, Errors.INVALID_RECORD, True),
    ("last offset delta 5", made(last_offset_delta=5), V2, Errors.INVALID_RECORD, True),
    ("last offset delta 0", made(last_offset_delta=0), V2, Errors.INVALID_RECORD, True),
    ("last offset delta -1", made(last_offset_delta=-1), V2, Errors.INVALID_RECORD, True),
    ("base offset 100", made(base_offset=100), V2, Errors.INVALID_RECORD, True),
    ("base offset -7", made(base_offset=-7), V2, Errors.INVALID_RECORD, True),
    ("length field 5", patched(8, struct.pack(">i", 5)), V2, Errors.CORRUPT_MESSAGE, False),
    ("length field too large", patched(8, struct.pack(">i", 5000)), V2, Errors.INVALID_RECORD, False),
    ("length field negative", patched(8, struct.pack(">i", -1)), V2, Errors.CORRUPT_MESSAGE, False),
    ("magic 3", patched(16, b"\x03"), V2, Errors.CORRUPT_MESSAGE, False),
    ("magic -1", patched(16, b"\xff"), V2, Errors.CORRUPT_MESSAGE, False),
    ("magic 1 in v9", joined(old()), 9, Errors.INVALID_RECORD, False),
    ("magic 0 in v3", joined(old(magic=0)), 3, Errors.INVALID_RECORD, False),
    ("magic 1 then magic 2", joined(old(), batch(2)), 2, Errors.INVALID_RECORD, True),
    ("magic 0 + magic 1", joined(old(magic=0), old()), 2, Errors.INVALID_RECORD, True),
    ("magic 1, bad CRC", joined(old()[:12], b"\0\0\0\1", old()[16:]), 2, Errors.CORRUPT_MESSAGE, True),
    ("compression id 5", made(attributes=5), V2, Errors.UNKNOWN_SERVER_ERROR, True),
    ("compression id 7", made(attributes=7), V2, Errors.UNKNOWN_SERVER_ERROR, True),
    ("zstd in v6", made(attributes=4), 6, Errors.UNSUPPORTED_COMPRESSION_TYPE, False),
    ("control flag", made(attributes=0x20), V2, Errors.INVALID_RECORD, True),
    ("no sequence", made(producer_id=5, producer_epoch=0), V2, Errors.INVALID_RECORD, True),
    ("over max.message.bytes", batch(1, size=1_100_000), V2, Errors.MESSAGE_TOO_LARGE, True),
]

# The eight recorded cases that are only seen inside a batch: name, records, Kafka's code.
DAMAGED_INSIDE: list[tuple[str, memoryview, Errors]] = [
    ("record length wrong", made(payload=b"\x7f" + RECORDS[: len(RECORDS) // 2], count=1, last_offset_delta=0),
     Errors.INVALID_RECORD),
    ("header key null", made(payload=HEADER_KEY_NULL, count=1, last_offset_delta=0),
     Errors.INVALID_RECORD),
    ("gzip, plain data", made(attributes=1), Errors.UNKNOWN_SERVER_ERROR),
    ("snappy, plain data", made(attributes=2), Errors.UNKNOWN_SERVER_ERROR),
    ("lz4, plain data", made(attributes=3), Errors.UNKNOWN_SERVER_ERROR),
    ("zstd, plain data", made(attributes=4), Errors.UNKNOWN_SERVER_ERROR),
    ("gzip, count wrong", made(attributes=1, payload=ZIPPED, count=3, last_offset_delta=2), Errors.INVALID_RECORD),
    ("gzip, empty stream", made(attributes=1, payload=gzip.compress(b"")), Errors.INVALID_RECORD),
]  # fmt: skip

# Accepted: name, records, Produce version.
ACCEPTED: list[tuple[str, memoryview, int]] = [
    ("5 bytes behind", joined(batch(2), b"12345"), V2),
    ("leader epoch in the batch", made(leader_epoch=9), V2),
    ("offset deltas not 0, 1", made(payload=RECORDS[:3] + b"\x0a" + RECORDS[4:]), V2),
    ("magic 2 in v2", batch(2), 2),
    ("magic 2 in v0", batch(2), 0),
    ("magic 1 in v2", joined(old()), 2),
    ("magic 0 in v0", joined(old(magic=0)), 0),
    ("two magic 1 messages", joined(old(), old(b"y", offset=1)), 2),
    ("gzip", made(attributes=1, payload=ZIPPED), V2),
    ("unused attribute bits", made(attributes=0x80), V2),
    ("delete horizon", made(attributes=0x40), V2),
    ("LogAppendTime set by the client", made(attributes=8), V2),
    ("timestamps -1", made(base_timestamp=-1, max_timestamp=-1), V2),
    ("base timestamp -5", made(base_timestamp=-5, max_timestamp=-4), V2),
    ("10 years ahead", made(base_timestamp=NOW + 315_360_000_000, max_timestamp=NOW + 315_360_000_001), V2),
    ("max timestamp differs", made(max_timestamp=5), V2),
    ("producer id without an epoch", made(producer_id=7, producer_epoch=-1, base_sequence=0), V2),
]  # fmt: skip


def fresh(records: memoryview) -> memoryview:
    """A copy: an append changes what it is given."""
    return memoryview(bytearray(records))


def stored(log: Log, offset: int = 0) -> bytes:
    return content(log.read(offset, 1 << 20, max_offset=log.log_end_offset))


@pytest.mark.parametrize("validate", [False, True], ids=["header only", "validate.records"])
@pytest.mark.parametrize(("records", "version", "code", "known"), [row[1:] for row in REFUSED],
                         ids=[row[0] for row in REFUSED])  # fmt: skip
def test_refused(records: memoryview, version: int, code: Errors, known: bool, validate: bool, tmp_path: Path) -> None:
    log = make_log(tmp_path, validate_records=validate)
    append(log)
    with pytest.raises(KafkaError) as refusal:
        append(log, fresh(records), version=version)
    assert refusal.value.code == code
    assert isinstance(refusal.value, InvalidProduce) != known
    assert log.log_end_offset == 1
    assert log.active.size == len(batch())


@pytest.mark.parametrize(("records", "version"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
@pytest.mark.parametrize("validate", [False, True], ids=["header only", "validate.records"])
def test_accepted(records: memoryview, version: int, validate: bool, tmp_path: Path) -> None:
    log = make_log(tmp_path, validate_records=validate)
    append(log)
    info = append(log, fresh(records), epoch=3, version=version)
    data = stored(log, 1)
    header = read_header(data)
    assert (info.first_offset, info.log_append_time, info.duplicate) == (1, -1, False)
    assert (header.base_offset, header.leader_epoch, header.magic) == (1, 3, 2)
    assert log.log_end_offset == header.last_offset + 1
    assert crc32c(data[21:]) == header.crc


@pytest.mark.parametrize(("records", "code"), [row[1:] for row in DAMAGED_INSIDE],
                         ids=[row[0] for row in DAMAGED_INSIDE])  # fmt: skip
def test_damaged_inside(records: memoryview, code: Errors, tmp_path: Path) -> None:
    assert append(make_log(tmp_path), fresh(records)).first_offset == 0
    for name, setting in (("u-0", {"validate_records": True}), ("c-0", {"cleanup_policy": "compact"})):
        careful = make_log(tmp_path, name=name, **setting)
        with pytest.raises(KafkaError) as refusal:
            append(careful, fresh(records))
        assert refusal.value.code == code
        assert refusal.value.message is None  # Kafka tells only its own log
        assert careful.log_end_offset == 0


def test_only_whole_request_errors_and_record_errors_have_messages(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    with pytest.raises(InvalidProduce) as corrupt:
        append(log, joined(bytes(61)))
    assert corrupt.value.message == "Record size 0 is less than the minimum record overhead (14)"
    with pytest.raises(InvalidProduce) as magic:
        append(log, patched(16, b"\xff"))
    assert magic.value.message == "Invalid magic found in record: -1"
    with pytest.raises(KafkaError) as silent:
        append(log, made(base_offset=100))
    assert silent.value.message is None
    assert "should be 0, but it is 100" in silent.value.__notes__[0]


def test_nothing_whole_is_no_error_in_old_produce(tmp_path: Path) -> None:
    info = append(make_log(tmp_path), joined(b"12345"), version=2)
    assert (info.first_offset, info.bytes) == (-1, 0)


def test_client_append_time_bit_is_cleared(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, made(attributes=8))
    header = read_header(stored(log))
    assert (header.attributes, header.max_timestamp) == (0, NOW + 1)


def test_max_timestamp_is_put_right_when_looking_inside(tmp_path: Path) -> None:
    log = make_log(tmp_path, validate_records=True)
    append(log, made(max_timestamp=5))
    assert read_header(stored(log)).max_timestamp == NOW + 1


def test_log_append_time(tmp_path: Path) -> None:
    log = make_log(tmp_path, message_timestamp_type="LogAppendTime")
    info = append(log, batch(2, timestamp=1000))
    header = read_header(stored(log))
    assert info.log_append_time == info.max_timestamp == header.max_timestamp == NOW
    assert header.is_log_append_time
    assert {found.timestamp for found in record.iter_records(stored(log))} == {NOW}


def test_timestamps_out_of_range(tmp_path: Path) -> None:
    log = make_log(tmp_path, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    append(log)
    with pytest.raises(RecordsRejected) as refusal:
        append(log, batch(2, timestamp=1_000_000))
    error = refusal.value
    assert (error.code, error.message) == (
        Errors.INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
    )
    assert error.record_errors[1] == (
        1,
        "Timestamp 1000001 of message with offset 1 is out of range. "
        f"The timestamp should be within [{NOW - 1000}, {NOW + 1000}]",
    )
    with pytest.raises(RecordsRejected):
        append(log, batch(timestamp=NOW + 1001))
    assert log.log_end_offset == 1


def test_future_bound_alone_reads_the_header_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path, message_timestamp_after_max_ms=1000)
    monkeypatch.setattr(compression, "decompress", None)
    monkeypatch.setattr(record, "iter_records", None)
    append(log, batch(codec=Codec.GZIP))


def test_null_key_in_a_compacted_topic(tmp_path: Path) -> None:
    log = make_log(tmp_path, name="compacted-0", cleanup_policy="compact")
    append(log, batch(2, key=b"k"))
    with pytest.raises(RecordsRejected) as refusal:
        append(log, batch(2))
    text = "Compacted topic cannot accept message without key in topic partition compacted-0"
    assert refusal.value.code == Errors.INVALID_RECORD
    assert refusal.value.record_errors == [(0, text), (1, text)]
    assert refusal.value.message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing the first three "
        f"errors at most: [RecordError(batchIndex=0, message='{text}'), RecordError(batchIndex=1, message='{text}')]"
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_keys_are_looked_for_quickly(codec: Codec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path, cleanup_policy="compact")
    mixed = [Record(at, NOW + at * 100_000, b"" if at % 2 else b"k" * at, bytes(at * 50)) for at in range(100)]
    with monkeypatch.context() as patch:
        patch.setattr("pybroker.storage.append.validating", None)
        append(log, memoryview(record.build_batch(mixed, codec=codec)))
    for missing in (0, 57, 99):
        mixed[missing] = mixed[missing]._replace(key=None)
        with pytest.raises(RecordsRejected) as refusal:
            append(log, memoryview(record.build_batch(mixed, codec=codec)))
        assert missing in [index for index, _ in refusal.value.record_errors]


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("validate", [False, True])
def test_topic_codec(name: str, source: Codec, validate: bool, tmp_path: Path) -> None:
    log = make_log(tmp_path, compression_type=name, validate_records=validate)
    append(log, batch(5, size=200, codec=source))
    header = read_header(stored(log))
    assert header.codec == {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[name]
    assert [found.value for found in record.iter_records(stored(log))] == [b"x" * 200] * 5


def test_growth_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    log = make_log(tmp_path, compression_type="uncompressed", max_message_bytes=1000)
    with pytest.raises(KafkaError) as refusal:
        append(log, batch(1, size=5000, codec=Codec.GZIP))
    assert refusal.value.code == Errors.MESSAGE_TOO_LARGE


def test_batch_larger_than_a_segment(tmp_path: Path) -> None:
    log = make_log(tmp_path, segment_bytes=1000)
    with pytest.raises(KafkaError) as refusal:
        append(log, batch(1, size=5000))
    assert refusal.value.code == Errors.RECORD_LIST_TOO_LARGE


def test_header_only_never_looks_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path)

    def looked(*_: Any, **__: Any) -> None:
        raise AssertionError("looked inside")

    monkeypatch.setattr("pybroker.storage.append.validating", looked)
    monkeypatch.setattr("pybroker.storage.append.payload_of", looked)
    for codec in Codec:
        for version in (7, V2):
            append(log, batch(3, codec=codec), version=version)


def test_own_records_are_not_judged(tmp_path: Path) -> None:
    """A coordinator writes control batches and, to compacted topics, whatever it likes."""
    log = make_log(tmp_path, cleanup_policy="compact", compression_type="gzip")
    marker = record.end_txn_batch(record.EndTxnMarker(True, 0), producer_id=1, producer_epoch=0, timestamp=NOW)
    append(log, memoryview(marker), from_client=False)
    header: BatchHeader = read_header(stored(log))
    assert header.is_control
    assert header.codec == 0


def test_prepare_leaves_the_buffer_alone_when_it_refuses(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for _, records, version, _, _ in REFUSED:
        before = bytes(records)
        with pytest.raises(KafkaError):
            prepare(fresh(records), log.rules, version=version, now_ms=NOW, from_client=True)
        assert bytes(records) == before
    assert host().failed == []
