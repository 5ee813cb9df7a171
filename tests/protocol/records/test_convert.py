from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.protocol.compression import Codec, compress
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records.convert import Validated, validating
from pybroker.protocol.records.header import LOG_APPEND_TIME, Buffer, check_crc, iter_headers, read_header
from pybroker.protocol.records.legacy import encode_message, encode_set
from pybroker.protocol.records.record import EndTxnMarker, Record, build_batch, end_txn_batch, iter_records
from pybroker.protocol.records.validate import RecordsRejected, TopicRules
from pybroker.protocol.work import finish

from .recorded import decode_log, recorded
from .test_record import X, Y, batch_of, raw_record, varint

BY_HAND = recorded()["byHand"]
FORMATS = {"hand-f0": 0, "hand-f1": 1, "hand-f2": 2}


def validate(
    buf: Buffer, base_offset: int = 0, *, now: int = 5_000, leader_epoch: int = 0, **rules: object
) -> Validated:
    topic = TopicRules("p-0", **rules)  # type: ignore[arg-type]
    return finish(validating(buf, topic, base_offset=base_offset, leader_epoch=leader_epoch, now=now))


def sample(codec: int = 0, base: int = 0, **more: object) -> bytearray:
    records = [
        Record(base, 1000, b"k0", b"v0"),
        Record(base + 1, 3000, b"k1", None),
        Record(base + 2, 2000, b"", b"v2"),
    ]
    return build_batch(records, codec=codec, **more)  # type: ignore[arg-type]


# --- recorded: produced with old versions, what lay on disk then, what old fetches gave


@pytest.mark.parametrize("topic", FORMATS)
def test_produced_by_hand(topic: str) -> None:
    written = b""
    offset = 0
    for sent in BY_HAND["sent"]:
        if sent["topic"] != topic:
            continue
        assert sent["answer"]["BaseOffset"] == offset
        done = validate(bytearray.fromhex(sent["recordsHex"]), offset, magic=FORMATS[topic])
        written += done.records
        offset = done.last_offset + 1
    assert written.hex() == BY_HAND["logs"][f"{topic}-0"]


# --- on the way in


@pytest.mark.parametrize("codec", list(Codec))
def test_a_good_batch_stays_where_it_is(codec: Codec) -> None:
    batch = sample(codec, producer_id=7, producer_epoch=0, base_sequence=0)
    before = bytes(batch)
    done = validate(memoryview(batch), 50, leader_epoch=4)
    assert not done.rebuilt
    assert (done.last_offset, done.max_timestamp, done.max_timestamp_offset) == (52, 3000, 52)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (50, 4)
    assert bytes(batch[16:]) == before[16:]
    assert check_crc(batch, 0, len(batch))


def test_a_read_only_buffer_is_copied_and_bytes_behind_the_batch_are_dropped() -> None:
    batch = bytes(sample())
    done = validate(batch + b"12345", 50)
    assert (len(done.records), read_header(done.records).base_offset) == (len(batch), 50)
    assert read_header(batch).base_offset == 0


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_another_codec(source: Codec, target: Codec) -> None:
    fields = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 5, "transactional": True}
    done = validate(sample(source, **fields), 50, leader_epoch=4, codec=target)
    assert done.rebuilt == (source != target)
    assert check_crc(done.records, 0, len(done.records))
    expected = sample(target, 50, leader_epoch=4, **fields)
    assert list(iter_records(done.records)) == list(iter_records(expected))
    assert read_header(done.records)._replace(crc=0) == read_header(expected)._replace(crc=0)


def test_another_codec_where_records_must_be_written_anew() -> None:
    """Their deltas do not start at zero, as after a client that keeps its own base timestamp."""
    batch = build_batch([Record(0, 900, None, b"x"), Record(1, 950, None, b"y")], base_timestamp=700)
    header = read_header(validate(batch, 5, codec=Codec.GZIP).records)
    assert (header.base_timestamp, header.max_timestamp) == (900, 950)
    done = validate(batch_of(Y + Y, 2), 5, codec=Codec.GZIP)
    assert [each.offset for each in iter_records(done.records)] == [5, 6]
    with pytest.raises(KafkaError, match="Invalid negative timestamp -5"):
        validate(batch_of(X + Y, 2, base_timestamp=-5), codec=Codec.GZIP)


def test_log_append_time() -> None:
    for codec, rebuilt in ((None, False), (Codec.GZIP, True)):
        done = validate(sample(), 10, now=9_999, codec=codec, timestamp_type=LOG_APPEND_TIME)
        header = read_header(done.records)
        assert (done.rebuilt, done.max_timestamp, done.max_timestamp_offset) == (rebuilt, 9_999, 12)
        assert (header.is_log_append_time, header.base_timestamp, header.max_timestamp) == (True, 1000, 9_999)
        assert check_crc(done.records, 0, len(done.records))
    old = encode_set([Record(0, 10, None, b"a"), Record(1, 20, None, b"b")], magic=1)
    done = validate(old, 10, now=9_999, magic=1, timestamp_type=LOG_APPEND_TIME)
    assert [header.max_timestamp for _, header in iter_headers(done.records)] == [9_999, 9_999]
    assert all(check_crc(done.records, at, header.size) for at, header in iter_headers(done.records))


def test_max_timestamp_and_type_are_put_right() -> None:
    batch = batch_of(X + Y, 2, attributes=0x88, max_timestamp=5)  # LogAppendTime and an unknown bit, wrong maximum
    header = read_header(validate(batch).records)
    assert (header.attributes, header.max_timestamp) == (0, 5)  # its records' time is that maximum
    header = read_header(validate(batch_of(X + Y, 2, attributes=0x80, max_timestamp=5)).records)
    assert (header.attributes, header.max_timestamp) == (0, 1000)


def test_inner_offsets_that_do_not_count_up() -> None:
    payload = Y + Y
    assert not validate(batch_of(payload, 2)).rebuilt  # uncompressed: kept as it is
    done = validate(batch_of(compress(Codec.GZIP, payload), 2, attributes=Codec.GZIP), 30)
    assert done.rebuilt
    assert [each.offset for each in iter_records(done.records)] == [30, 31]


def test_old_messages_in_plain_sets_become_one_batch() -> None:
    for magic, newest in ((0, -1), (1, 20)):
        old = encode_set([Record(0, 10, b"k", b"a"), Record(1, 20, None, b"b")], magic=magic)
        done = validate(old, 7, leader_epoch=3)
        (found,) = iter_headers(done.records)
        assert (found[1].base_offset, found[1].count, found[1].leader_epoch) == (7, 2, 3)
        assert done.max_timestamp == found[1].max_timestamp == newest
        assert done.max_timestamp_offset == (8 if magic else -1)
        assert [each.value for each in iter_records(done.records)] == [b"a", b"b"]


def test_new_batches_in_topics_of_an_old_format() -> None:
    done = validate(sample(Codec.GZIP), 7, magic=1)
    assert [each.offset for each in decode_log(bytes(done.records))] == [7, 8, 9]
    assert (done.max_timestamp, done.max_timestamp_offset) == (3000, 9)
    plain = validate(sample(), 7, magic=1)
    assert (plain.max_timestamp, plain.max_timestamp_offset) == (3000, 8)
    for fields, what in (({"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}, "Idempotent"),
                         ({"transactional": True}, "Transactional")):  # fmt: skip
        with pytest.raises(KafkaError, match=f"{what} records cannot be used with magic version 1") as caught:
            validate(sample(**fields), magic=1)
        assert caught.value.code == Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_control_batches_of_our_own() -> None:
    marker = end_txn_batch(EndTxnMarker(True, 1), producer_id=1, producer_epoch=0, timestamp=5)
    assert validate(marker, from_client=False, codec=Codec.GZIP).rebuilt is False
    with pytest.raises(KafkaError, match="Clients are not allowed to write control records in topic partition p-0"):
        validate(marker)


ONE = encode_message(0, 1, None, b"x", magic=1)
BAD_CRC = bytearray(ONE)
BAD_CRC[12] ^= 1
PLAIN = X + Y
GZIPPED = compress(Codec.GZIP, PLAIN)
NULL_HEADER_KEY = raw_record(b"\0\0\0" + varint(-1) + varint(-1) + varint(1) + varint(-1) + varint(-1))
REFUSED = [  # Kafka's recorded answers: case, bytes, code, text in the broker's log
    ("no batch", b"", 87, "Record batch has no batches at all"),
    ("count 0", batch_of(b"", 0), 87, "Batch has an invalid offset range: [0, -1] in topic partition p-0"),
    ("count 0, last delta 0", batch_of(b"", 0, last_offset_delta=0), 87,
     "Invalid reported count for record batch: 0 in topic partition p-0"),
    ("count 3, two records", batch_of(PLAIN, 3, last_offset_delta=1), 87,
     "Inconsistent batch offset range [0, 1] and count of records 3 in topic partition p-0"),
    ("magic 1 then magic 2", ONE + batch_of(PLAIN, 2), 87,
     "Batch magic 2 is not the same as the first batch's magic byte 1 in topic partition p-0"),
    ("magic 0 and magic 1", encode_message(0, 1, None, b"x", magic=0) + ONE, 87,
     "Batch magic 1 is not the same as the first batch's magic byte 0 in topic partition p-0"),
    ("two batches", batch_of(PLAIN, 2) * 2, 87, "Compressed outer record has more than one batch"),
    ("two wrappers", encode_set([Record(0, 1, None, b"x")], magic=1, codec=Codec.GZIP) * 2, 87,
     "Compressed outer record has more than one batch"),
    ("magic 1, bad CRC", BAD_CRC, 2, None),
    ("compression id 5", batch_of(PLAIN, 2, attributes=5), -1, "Unknown compression type id: 5"),
    ("gzip flag, plain data", batch_of(PLAIN, 2, attributes=1), -1, "Not in GZIP format"),
    ("snappy flag, plain data", batch_of(PLAIN, 2, attributes=2), -1, None),
    ("lz4 flag, plain data", batch_of(PLAIN, 2, attributes=3), -1, None),
    ("zstd flag, plain data", batch_of(PLAIN, 2, attributes=4), -1, None),
    ("gzip, count wrong", batch_of(GZIPPED, 3, attributes=1), 87,
     "Incorrect declared batch size, premature EOF reached"),
    ("gzip, empty stream", batch_of(compress(1, b""), 2, attributes=1), 87,
     "Incorrect declared batch size, premature EOF reached"),
    ("record length wrong", batch_of(b"\x7f" + X, 1), 87, "Found invalid record structure"),
    ("header key null", batch_of(NULL_HEADER_KEY, 1), 87, "Invalid negative header key size -1"),
    ("producer id, sequence -1", batch_of(PLAIN, 2, producer_id=5557, producer_epoch=0), 87,
     "Invalid sequence number -1 in record batch with producerId 5557 in topic partition p-0"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "code", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused(data: bytes, code: int, message: str | None) -> None:
    with pytest.raises(KafkaError) as caught:
        validate(bytearray(data))
    assert caught.value.code == code
    if message is not None:
        assert caught.value.message == message


def test_timestamps_out_of_range() -> None:
    with pytest.raises(RecordsRejected) as caught:
        validate(sample(), now=1_796_052_013_099, before_max_ms=1000, after_max_ms=1000)
    assert caught.value.code == Errors.INVALID_TIMESTAMP
    assert caught.value.message == "One or more records have been rejected due to invalid timestamp"
    assert caught.value.record_errors[1] == (
        1,
        "Timestamp 3000 of message with offset 1 is out of range. "
        "The timestamp should be within [1796052012099, 1796052014099]",
    )
    assert [index for index, _ in caught.value.record_errors] == [0, 1, 2]
    validate(sample(), now=3_500, before_max_ms=2_500, after_max_ms=0)
    with pytest.raises(RecordsRejected) as caught:
        validate(sample(), now=2_999, after_max_ms=0)
    assert [index for index, _ in caught.value.record_errors] == [1]
    validate(sample(), now=0, after_max_ms=0, timestamp_type=LOG_APPEND_TIME)
    with pytest.raises(RecordsRejected, match="invalid timestamp"):
        validate(sample(timestamp_type=LOG_APPEND_TIME, log_append_time=5), timestamp_type=LOG_APPEND_TIME)


def test_null_keys_in_compacted_topics() -> None:
    with pytest.raises(RecordsRejected) as caught:
        validate(batch_of(PLAIN, 2), compacted=True)
    text = "Compacted topic cannot accept message without key in topic partition p-0"
    assert caught.value.code == Errors.INVALID_RECORD
    assert caught.value.record_errors == [(0, text), (1, text)]
    assert caught.value.message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing the first three "
        f"errors at most: [RecordError(batchIndex=0, message='{text}'), RecordError(batchIndex=1, message='{text}')]"
    )
    validate(sample(), compacted=True)


@given(st.binary(max_size=60), st.integers(0, 3), st.integers(0, 7), st.sampled_from([0, 1, 2]))
def test_noise_inside_a_batch(noise: bytes, count: int, attributes: int, magic: int) -> None:
    batch = batch_of(noise, count, attributes=attributes)
    try:
        validate(batch, magic=magic)
    except KafkaError:
        pass
