from __future__ import annotations

import os
from struct import pack_into

import pytest

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.header import (
    BATCH_OVERHEAD,
    HEADER,
    LENGTH_AT,
    MAGIC_AT,
    BatchHeader,
    check_crc,
    crc32c,
    ensure_crc,
    iter_headers,
    read_header,
)
from pybroker.protocol.records.legacy import encode_message
from pybroker.protocol.records.record import Record, build_batch

BATCH = bytes(build_batch([Record(5, 100, b"k", b"v"), Record(6, 90, None, None)], leader_epoch=3, producer_id=9,
                          producer_epoch=1, base_sequence=4, transactional=True))  # fmt: skip


def test_fields() -> None:
    assert HEADER.size == BATCH_OVERHEAD
    header = read_header(b"pad" + BATCH, 3)
    assert header == BatchHeader(5, len(BATCH) - 12, 3, 2, header.crc, 0x10, 1, 100, 100, 9, 1, 4, 2)
    assert (header.last_offset, header.size, header.codec, header.is_transactional) == (6, len(BATCH), 0, True)
    assert not (header.is_control or header.is_log_append_time or header.has_delete_horizon)


def test_messages_of_old_formats_look_like_batches_of_one_offset() -> None:
    old = encode_message(7, 55, b"k", b"v", magic=1)
    header = read_header(old)
    assert (header.base_offset, header.last_offset, header.size, header.magic) == (7, 7, len(old), 1)
    assert (header.max_timestamp, header.count, header.leader_epoch, header.producer_id) == (55, -1, -1, -1)
    assert check_crc(old, 0, len(old))
    assert read_header(encode_message(7, 55, b"k", b"v", magic=0)).max_timestamp == -1
    assert [at for at, _ in iter_headers(bytes(old) + BATCH)] == [0, len(old)]


def test_what_is_cut_off_at_the_end_is_passed_over() -> None:
    for cut in range(len(BATCH)):
        assert [at for at, _ in iter_headers(BATCH + BATCH[:cut])] == [0]
    assert len(list(iter_headers(memoryview(bytearray(BATCH * 3))))) == 3


@pytest.mark.parametrize(
    ("at", "kind", "value", "message"),
    [
        (LENGTH_AT, ">i", 0, "Record size 0 is less than the minimum record overhead (14)"),
        (LENGTH_AT, ">i", 5, "Record size 5 is less than the minimum record overhead (14)"),
        (LENGTH_AT, ">i", -1, "Record size -1 is less than the minimum record overhead (14)"),
        (MAGIC_AT, ">b", 3, "Invalid magic found in record: 3"),
        (MAGIC_AT, ">b", -1, "Invalid magic found in record: -1"),
        (LENGTH_AT, ">i", 20, "Record batch is corrupt (the size 32 is smaller than the minimum allowed overhead 61)"),
    ],
)
def test_damaged_headers(at: int, kind: str, value: int, message: str) -> None:
    batch = bytearray(BATCH)
    pack_into(kind, batch, at, value)
    with pytest.raises(KafkaError) as caught:
        list(iter_headers(batch))
    assert (caught.value.code, caught.value.message) == (Errors.CORRUPT_MESSAGE, message)


def test_a_length_beyond_the_data_is_a_batch_that_is_not_there() -> None:
    batch = bytearray(BATCH)
    pack_into(">i", batch, LENGTH_AT, 5000)
    assert list(iter_headers(batch)) == []


def test_crc() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    for buf in (BATCH, bytes(encode_message(1, 2, b"k", os.urandom(20), magic=1))):
        assert check_crc(b"..." + buf, 3, len(buf))
        for flip in (MAGIC_AT + 7, len(buf) - 1):
            bad = bytearray(buf)
            bad[flip] ^= 1
            assert not check_crc(bad, 0, len(bad))
            with pytest.raises(KafkaError, match="stored crc") as caught:
                ensure_crc(bad, 0, len(bad))
            assert caught.value.code == Errors.CORRUPT_MESSAGE
