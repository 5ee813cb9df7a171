from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.protocol.compression import Codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import MAGIC_V2, BatchHeader, check_crc, read_header
from pybroker.protocol.records.record import (
    BatchBuilder,
    EndTxnMarker,
    Record,
    assemble,
    build_batch,
    end_txn_batch,
    increment_sequence,
    iter_records,
    put_varint,
    read_end_txn_marker,
)

MAYBE = st.none() | st.binary(max_size=200)
TIMES = st.just(-1) | st.integers(0, 1 << 62)
BODIES = st.lists(
    st.tuples(TIMES, MAYBE, MAYBE, st.lists(st.tuples(st.binary(max_size=9), MAYBE), max_size=3).map(tuple)),
    min_size=1,
    max_size=20,
)


def varint(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


def raw_record(body: bytes) -> bytes:
    return varint(len(body)) + body


def batch_of(payload: bytes, count: int, *, attributes: int = 0, **fields: int) -> bytearray:
    header = BatchHeader(0, 0, -1, MAGIC_V2, 0, attributes, count - 1, 1000, 1000, -1, -1, -1, count)
    return assemble(header._replace(**fields), payload)


X = raw_record(b"\0\0\0" + varint(-1) + varint(1) + b"x" + varint(0))
Y = raw_record(b"\0\0" + varint(1) + varint(-1) + varint(1) + b"y" + varint(0))


@given(
    bodies=BODIES,
    base=st.integers(0, 1 << 40),
    steps=st.lists(st.integers(1, 1 << 20), min_size=20, max_size=20),
    codec=st.sampled_from(Codec),
    sequence=st.integers(-1, (1 << 31) - 1),
)
def test_round_trip(bodies: list[tuple], base: int, steps: list[int], codec: Codec, sequence: int) -> None:  # type: ignore[type-arg]
    records = []
    for body, step in zip(bodies, steps, strict=False):
        records.append(Record(base, *body))
        base += step
    batch = build_batch(records, codec=codec, producer_id=1 if sequence >= 0 else -1, base_sequence=sequence)
    header = read_header(batch)
    assert check_crc(batch, 0, len(batch))
    assert header.size == len(batch)
    assert header.max_timestamp == max(-1, *(each.timestamp for each in records))
    start = records[0].offset
    expected = [
        each._replace(sequence=increment_sequence(sequence, each.offset - start) if sequence >= 0 else -1)
        for each in records
    ]
    assert list(iter_records(batch)) == expected


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_timestamps_of_any_distance(base: int) -> None:
    batch = batch_of(X, 1, base_timestamp=base)
    assert next(iter_records(batch)).timestamp == base


def test_timestamp_sums_wrap_around_as_in_java() -> None:
    one = raw_record(b"\0" + varint(1) + b"\0" + varint(-1) + varint(-1) + varint(0))
    assert next(iter_records(batch_of(one, 1, base_timestamp=(1 << 63) - 1))).timestamp == -(1 << 63)


@given(st.binary(max_size=80), st.integers(-1, 5), st.sampled_from([0, 1]))
def test_noise_is_refused_or_read_never_anything_else(noise: bytes, count: int, codec: int) -> None:
    payload = zlib.compress(noise, wbits=31) if codec else noise
    try:
        list(iter_records(batch_of(payload, count, attributes=codec)))
    except KafkaError as error:
        assert error.code in (Errors.INVALID_RECORD, Errors.UNKNOWN_SERVER_ERROR)


HEADER_KEY_NULL = raw_record(b"\0\0\0" + varint(-1) + varint(-1) + varint(1) + varint(-1) + varint(-1))
CASES = [
    ("record length wrong", b"\x7f" + X, 1, "Found invalid record structure"),
    ("header key null", HEADER_KEY_NULL, 1, "Invalid negative header key size -1"),
    ("one more declared", X + Y, 3, "Incorrect declared batch size, premature EOF reached"),
    ("one fewer declared", X + Y, 1, "Incorrect declared batch size, records still remaining in file"),
    ("count -1", X, -1, "Found invalid record count -1 in magic v2 batch"),
    ("length one too small", varint(len(X) - 2) + X[1:], 1,
     f"Invalid record size: expected to read {len(X) - 2} bytes in record payload, but instead read {len(X) - 1}"),
    ("length beyond the end", varint(len(X)) + X[1:], 1,
     f"Invalid record size: expected {len(X)} bytes in record payload, but instead the buffer has only "
     f"{len(X) - 1} remaining bytes."),
    ("header count -1", raw_record(b"\0\0\0" + varint(-1) + varint(-1) + varint(-1)), 1,
     "Found invalid number of record headers -1"),
    ("header count too large", raw_record(b"\0\0\0" + varint(-1) + varint(-1) + varint(9)), 1,
     "Found invalid number of record headers. 9 is larger than the remaining size of the buffer"),
    ("key beyond the end", raw_record(b"\0\0\0" + varint(90)), 1, "Found invalid record structure"),
    ("varint too long", raw_record(b"\0\0" + b"\xff" * 5 + b"\x01" + b"\0" * 4), 1, "Found invalid record structure"),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "count", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_damaged_insides(payload: bytes, count: int, message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        list(iter_records(batch_of(payload, count)))
    assert (caught.value.code, caught.value.message) == (Errors.INVALID_RECORD, message)


@pytest.mark.parametrize(("payload", "count"), [(X + Y, 3), (b"", 2), (X[:-3], 1)])
def test_damaged_insides_compressed(payload: bytes, count: int) -> None:
    with pytest.raises(KafkaError) as caught:
        list(iter_records(batch_of(zlib.compress(payload, wbits=31), count, attributes=Codec.GZIP)))
    assert caught.value.code == Errors.INVALID_RECORD


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 6, 7])
def test_plain_data_under_a_codecs_flag(codec: int) -> None:
    with pytest.raises(KafkaError) as caught:
        list(iter_records(batch_of(X + Y, 2, attributes=codec)))
    assert caught.value.code == Errors.UNKNOWN_SERVER_ERROR


def test_what_kafka_accepts() -> None:
    header_value_null = raw_record(b"\0\0\0" + varint(-1) + varint(-1) + varint(1) + varint(1) + b"h" + varint(-1))
    (only,) = iter_records(batch_of(header_value_null, 1))
    assert only.headers == ((b"h", None),)
    offsets = [each.offset for each in iter_records(batch_of(Y + X, 2))]  # deltas need not count up
    assert offsets == [1, 0]


def test_a_bomb_is_stopped() -> None:
    batch = build_batch([Record(0, 1, None, bytes(5_000_000))], codec=Codec.ZSTD)
    with pytest.raises(KafkaError) as caught:
        list(iter_records(batch, limit=1_000_000))
    assert caught.value.code == Errors.MESSAGE_TOO_LARGE


def test_builder() -> None:
    builder = BatchBuilder(40, leader_epoch=2)
    assert builder.append(10, b"k", b"v") == 40
    assert builder.append(12, None, None, ((b"h", b"1"),)) == 41
    assert (builder.next_offset, builder.count) == (42, 2)
    batch = builder.build()
    assert builder.size == len(batch)
    assert [each.offset for each in iter_records(batch)] == [40, 41]
    with pytest.raises(ValueError, match="offset 41"):
        builder.append_record(Record(41, 1, None, None))
    with pytest.raises(KafkaError, match="Invalid negative timestamp -5"):
        builder.append(-5, None, None)


def test_a_batch_emptied_by_compaction_keeps_its_place() -> None:
    batch = build_batch([], base_offset=10, last_offset=14, max_timestamp=77, producer_id=5, producer_epoch=0,
                        base_sequence=3, codec=Codec.GZIP)  # fmt: skip
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.count, header.codec) == (10, 14, 0, 0)
    assert (header.base_timestamp, header.max_timestamp, len(batch)) == (77, 77, 61)
    assert list(iter_records(batch)) == []


def test_sequences_wrap() -> None:
    assert increment_sequence((1 << 31) - 1, 1) == 0


def test_control_records() -> None:
    batch = end_txn_batch(EndTxnMarker(True, 6), producer_id=1, producer_epoch=2, timestamp=3, base_offset=9)
    header = read_header(batch)
    assert (header.attributes, header.base_sequence, header.count, header.base_offset) == (0x30, -1, 1, 9)
    (only,) = iter_records(batch)
    assert read_end_txn_marker(only) == EndTxnMarker(True, 6)
    assert read_end_txn_marker(only._replace(key=b"\0\0\0\x05")) is None
    for key, value in ((b"\0\0\0", only.value), (None, None), (b"\xff\xff\0\0", only.value), (only.key, b"\0\0\0"),
                       (only.key, b"\xff\xff\0\0\0\0")):  # fmt: skip
        with pytest.raises(KafkaError):
            read_end_txn_marker(only._replace(key=key, value=value))
