from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.protocol.compression import Codec, compress
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import LOG_APPEND_TIME, check_crc, iter_headers, read_header
from pybroker.protocol.records.legacy import encode_message, encode_set, iter_records, set_timestamp
from pybroker.protocol.records.record import Record

MAYBE = st.none() | st.binary(max_size=100)
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def decode(data: bytes | bytearray) -> list[Record]:
    return [
        found
        for at, header in iter_headers(data)
        for found in iter_records(memoryview(data)[at : at + header.size], check_inner=True)
    ]


@given(
    parts=st.lists(st.tuples(st.integers(-1, 1 << 50), MAYBE, MAYBE), min_size=1, max_size=12),
    base=st.integers(0, 1 << 50),
    codec=st.sampled_from(OLD_CODECS),
    magic=st.sampled_from([0, 1]),
)
def test_round_trip(parts: list[tuple[int, bytes | None, bytes | None]], base: int, codec: Codec, magic: int) -> None:
    records = [Record(base + 3 * index, *part) for index, part in enumerate(parts)]
    data = encode_set(records, magic=magic, codec=codec)
    for at, header in iter_headers(data):
        assert check_crc(data, at, header.size)
    if codec:
        wrapper = read_header(data)
        assert wrapper.base_offset == records[-1].offset
        assert wrapper.max_timestamp == (max(-1, *(r.timestamp for r in records)) if magic else -1)
    expected = records if magic else [each._replace(timestamp=-1) for each in records]
    # A wrapper at offset 0 in magic 1 is read with absolute inner offsets, which are the same here.
    assert decode(data) == expected


@given(st.binary(max_size=120), st.sampled_from([0, 1]), st.sampled_from(OLD_CODECS[:2]))
def test_noise_inside_is_refused_or_read(noise: bytes, magic: int, codec: Codec) -> None:
    data = encode_message(3, 1, None, compress(codec, noise), magic=magic, codec=codec)
    try:
        decode(data)
    except KafkaError as error:
        assert error.code in (Errors.INVALID_RECORD, Errors.CORRUPT_MESSAGE)


def test_log_append_time() -> None:
    records = [Record(4, 10, b"a", b"b"), Record(5, 20, b"c", b"d")]
    plain = encode_set(records, magic=1, timestamp_type=LOG_APPEND_TIME, log_append_time=99)
    packed = encode_set(records, magic=1, codec=Codec.GZIP, timestamp_type=LOG_APPEND_TIME, log_append_time=99)
    for data in (plain, packed):
        assert [each.timestamp for each in decode(data)] == [99, 99]
        assert all(header.is_log_append_time for _, header in iter_headers(data))


def test_wrapper_of_offset_0_keeps_inner_offsets() -> None:
    inner = encode_set([Record(0, 1, None, b"a"), Record(1, 1, None, b"b")], magic=1)
    data = encode_message(0, 1, None, compress(Codec.GZIP, inner), magic=1, codec=Codec.GZIP)
    assert [each.offset for each in decode(data)] == [0, 1]


def wrapper(
    inner: bytes | bytearray | None, *, magic: int = 1, offset: int = 5, codec: Codec = Codec.GZIP
) -> bytearray:
    packed = None if inner is None else compress(codec, inner, magic=magic)
    return encode_message(offset, 1, None, packed, magic=magic, codec=codec)


M = encode_message(9, 1, None, b"v", magic=1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wrapper(None), "Found invalid compressed record set with null value (magic = 1)"),
        (wrapper(b""), "Found invalid compressed record set with no inner records"),
        (wrapper(M), "Found invalid wrapper offset in compressed v1 message set, wrapper offset '5' is less than the "
                     "last inner message offset '9' and it is not zero."),
        (wrapper(wrapper(M), offset=20), "Inner messages must not be compressed"),
        (wrapper(M, magic=0), "Record 0's magic does not match outer magic 0"),
        (wrapper(M, codec=Codec.ZSTD), "Invalid wrapper compressionType found in legacy deep record iterator 1"),
    ],
)  # fmt: skip
def test_damaged_wrappers(data: bytearray, message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        decode(data)
    assert (caught.value.code, caught.value.message) == (Errors.INVALID_RECORD, message)


def test_inner_crc() -> None:
    bad = bytearray(M)
    bad[-1] ^= 1
    data = wrapper(bad, offset=9)
    assert len(list(iter_records(data))) == 1
    with pytest.raises(KafkaError) as caught:
        decode(data)
    assert caught.value.code == Errors.CORRUPT_MESSAGE


def test_fields_beyond_the_message() -> None:
    data = bytearray(M)
    data[26:30] = b"\0\0\0\x63"
    with pytest.raises(KafkaError, match="Found invalid record structure"):
        decode(data)


def test_bounds() -> None:
    big = [Record(0, 1, None, bytes(1_000_000))]
    with pytest.raises(KafkaError) as caught:
        encode_set(big, magic=1, limit=500_000)
    assert caught.value.code == Errors.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError) as caught:
        list(iter_records(encode_set(big, magic=1, codec=Codec.GZIP), limit=500_000))
    assert caught.value.code == Errors.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError) as caught:
        encode_set(big, magic=1, codec=Codec.ZSTD)
    assert caught.value.code == Errors.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(KafkaError, match="Invalid negative timestamp -5"):
        encode_set([Record(0, -5, None, None)], magic=0)


def test_set_timestamp() -> None:
    data = encode_message(1, 2, b"k", b"v", magic=1)
    set_timestamp(data, 0, len(data), LOG_APPEND_TIME, 77)
    assert check_crc(data, 0, len(data))
    assert (read_header(data).max_timestamp, read_header(data).is_log_append_time) == (77, True)
