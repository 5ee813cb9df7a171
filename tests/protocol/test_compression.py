from __future__ import annotations

import gzip
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.protocol.compression import Codec, CorruptRecords, compress, decompress
from pybroker.protocol.errors import Errors

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("magic", [0, 2])
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    "data", [b"", b"a", b"x" * 3_000_000, os.urandom(200_000)], ids=["none", "one", "much", "noise"]
)
def test_round_trip(codec: Codec, data: bytes, magic: int) -> None:
    packed = compress(codec, memoryview(data), magic=magic)
    assert decompress(codec, packed, magic=magic) == data
    assert decompress(codec, memoryview(bytearray(packed)), magic=magic) == data


@given(st.sampled_from(PACKED), st.binary(max_size=300))
def test_noise_is_refused_or_read_never_anything_else(codec: Codec, noise: bytes) -> None:
    for data in (noise, compress(codec, b"prefix" * 20)[:-3] + noise, compress(codec, b"")[:12] + noise):
        try:
            assert len(decompress(codec, data, 10_000)) <= 10_000
        except CorruptRecords:
            pass


@pytest.mark.parametrize("codec", list(Codec))
def test_output_is_bounded(codec: Codec) -> None:
    packed = compress(codec, bytes(8_000_000))
    with pytest.raises(CorruptRecords) as caught:
        decompress(codec, packed, 7_999_999)
    assert caught.value.code == Errors.MESSAGE_TOO_LARGE
    assert len(decompress(codec, packed, 8_000_000)) == 8_000_000


@pytest.mark.parametrize("codec", PACKED)
def test_plain_data_is_an_unknown_server_error(codec: Codec) -> None:
    with pytest.raises(CorruptRecords) as caught:
        decompress(codec, b"\x0e\0\0\0\x01\x02x\0\x0e\0\0\x02\x01\x02y\0")
    assert caught.value.code == Errors.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_unknown_codec(codec_id: int) -> None:
    for work in (compress, decompress):
        with pytest.raises(CorruptRecords, match=f"Unknown compression type id: {codec_id}"):
            work(codec_id, b"")


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, (1, 9)), (Codec.LZ4, (1, 9, 17)), (Codec.ZSTD, (-5, 1, 22)), (Codec.SNAPPY, ())]
)
def test_levels(codec: Codec, levels: tuple[int, ...]) -> None:
    data = b"the same again and again " * 1000
    for level in levels:
        assert decompress(codec, compress(codec, data, level)) == data


def test_gzip_members_follow_one_another() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"
    with pytest.raises(CorruptRecords, match="members"):
        decompress(Codec.GZIP, gzip.compress(b"") * 1001)


def test_gzip_members_end_anywhere_in_what_is_read_at_once() -> None:
    parts = [os.urandom(size) for size in range(65_480, 65_540)]
    packed = b"".join(gzip.compress(part, 1) for part in parts)
    assert decompress(Codec.GZIP, packed) == b"".join(parts)
    assert decompress(Codec.GZIP, packed + b"\x1f") == b"".join(parts)


def test_a_gzip_stream_that_ends_early_gives_what_there_is() -> None:
    data = os.urandom(100_000) + bytes(3_000_000)
    packed = compress(Codec.GZIP, data)
    for end in (11, 40_000, 65_536, 101_000, len(packed) - 9, len(packed) - 8, len(packed) - 1):
        unpacked = decompress(Codec.GZIP, packed[:end])
        assert data.startswith(unpacked)
    assert unpacked == data


@pytest.mark.parametrize("magic", [0, 2])
@pytest.mark.parametrize("codec", PACKED)
def test_what_is_read_in_many_pieces(codec: Codec, magic: int) -> None:
    data = (os.urandom(50_000) + bytes(200_000)) * 20
    packed = memoryview(compress(codec, data, magic=magic))
    assert decompress(codec, packed, magic=magic) == data


def test_snappy_frames() -> None:
    framed = compress(Codec.SNAPPY, b"y" * 40_000)
    assert framed[:16] == b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    assert decompress(Codec.SNAPPY, framed + framed) == b"y" * 80_000
    raw = compress(Codec.SNAPPY, b"raw")[20:]
    assert decompress(Codec.SNAPPY, raw) == b"raw"
    with pytest.raises(CorruptRecords):  # a claim of 4 GB in a few bytes
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\0", 1 << 40)


def test_lz4_of_magic_0_has_the_old_header_checksum() -> None:
    old, new = compress(Codec.LZ4, b"abc" * 50, magic=0), compress(Codec.LZ4, b"abc" * 50)
    assert old[:6] == new[:6] == b"\x04\x22\x4d\x18\x60\x40"
    assert (old[6], new[6]) == (0x1A, 0x82)  # as recorded
    assert old[7:] == new[7:]
    with pytest.raises(CorruptRecords):
        decompress(Codec.LZ4, old)
    assert decompress(Codec.LZ4, new, magic=0) == b"abc" * 50  # the checksum is not looked at there


def test_the_libraries_are_not_loaded_at_start() -> None:
    code = (
        "import sys, pybroker.protocol.records.convert;"
        "print([m for m in ('lz4','zstandard','snappy','cramjam','importlib.metadata','email') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path = {sys.path!r}; {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "[]"
