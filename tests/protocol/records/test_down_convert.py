"""What old consumers get of newer batches, whole and chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.protocol.compression import Codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.records import legacy
from pybroker.protocol.records.down_convert import CHUNK, WINDOW, ConversionFailed, DownConversion
from pybroker.protocol.records.header import LOG_APPEND_TIME, BatchHeader, Buffer, iter_headers
from pybroker.protocol.records.legacy import encode_set
from pybroker.protocol.records.reading import STEP
from pybroker.protocol.records.record import EndTxnMarker, Record, build_batch, end_txn_batch
from pybroker.protocol.work import Work, finish

from .recorded import decode_log
from .test_convert import BY_HAND, FORMATS, sample
from .test_record import X, batch_of

ZSTD_MESSAGE = "Down-conversion of zstandard-compressed batches is not supported"
CUT_OFF = bytes(8) + (1 << 30).to_bytes(4, "big") + bytes(4) + b"\2"  # the beginning of a batch that isn't whole


def down_convert(log: Buffer, magic: int, size: int = 0, *, first_offset: int = 0, allowed: bool = True) -> bytes:
    """The whole answer for a slice: `log` and, up to `size` bytes, the beginning of one more batch."""
    more = max(size - len(log), 0)
    data = bytes(log) + (CUT_OFF + bytes(more))[:more]
    conversion = DownConversion(
        lambda at, length: data[at : at + length], len(data), magic, first_offset, allowed=allowed
    )
    finish(conversion.begin())
    answer = b""
    while conversion.left:
        answer += finish(conversion.chunk())
    assert len(answer) == conversion.length
    return answer


@pytest.mark.parametrize("name", BY_HAND["fetched"])
def test_fetched_by_hand(name: str) -> None:
    topic, _, version = name.rpartition(" Fetch v")
    log = bytes.fromhex(BY_HAND["logs"][f"{topic}-0"])
    magic = 0 if int(version) < 2 else 1 if int(version) < 4 else 2
    answer = down_convert(log, magic) if magic < FORMATS[topic] else log
    assert answer.hex() == BY_HAND["fetched"][name]


def magics(data: bytes) -> list[tuple[int, int, int]]:
    return [(header.last_offset, header.magic, header.attributes) for _, header in iter_headers(data)]


def test_down_conversion_of_a_plain_and_a_gzip_batch() -> None:
    log = bytes(sample() + sample(Codec.GZIP, 3))
    for magic in (0, 1):
        answer = down_convert(log, magic)
        assert len(answer) == len(log)
        assert magics(answer)[:3] == [(0, magic, 0), (1, magic, 0), (2, magic, 0)]
    wide = down_convert(log, 1, 1000)
    assert magics(wide) == [(0, 1, 0), (1, 1, 0), (2, 1, 0), (5, 1, 1)]
    assert [each.offset for each in decode_log(wide)] == list(range(6))


def test_the_answer_is_cut_or_padded_to_the_promised_size() -> None:
    log = bytes(sample())
    whole = down_convert(log, 1)
    assert len(whole) > len(log)  # the first batch is never cut
    wide = down_convert(log, 1, len(whole) + 100)
    assert wide[: len(whole)] == whole
    assert wide[len(whole) :] == b"\xff" * 8 + (101).to_bytes(4, "big") + bytes(88)
    assert down_convert(log, 1, len(whole) + 5) == whole + b"\xff" * 5
    two = bytes(sample() + sample(base=3))
    answer = down_convert(two, 1)
    assert len(answer) == len(two) < 2 * len(whole)
    assert answer[: len(whole)] == whole
    assert down_convert(two, 1, 2 * len(whole)).startswith(answer)  # cut in the middle of a message


def test_nothing_left() -> None:
    marker = bytes(end_txn_batch(EndTxnMarker(True, 1), producer_id=1, producer_epoch=0, timestamp=5))
    assert down_convert(b"", 0) == b""
    assert down_convert(marker, 0) == b"\xff" * 8 + (61).to_bytes(4, "big")
    assert magics(down_convert(marker + sample(base=1), 0))[0] == (1, 0, 0)


def test_uncompressed_records_below_the_offset_asked_for_are_dropped() -> None:
    assert magics(down_convert(bytes(sample()), 1, 300, first_offset=2)) == [(2, 1, 0)]
    packed = down_convert(bytes(sample(Codec.GZIP)), 1, 300, first_offset=2)
    assert [each.offset for each in decode_log(packed)] == [0, 1, 2]


def test_log_append_time_goes_down_too() -> None:
    log = bytes(sample(timestamp_type=LOG_APPEND_TIME, log_append_time=77))
    assert [each.timestamp for each in decode_log(down_convert(log, 1, 500))] == [77, 77, 77]


def test_zstd() -> None:
    zstd = sample(Codec.ZSTD, 3)
    with pytest.raises(KafkaError, match=ZSTD_MESSAGE) as caught:
        down_convert(bytes(zstd), 1)
    assert caught.value.code == Errors.UNSUPPORTED_COMPRESSION_TYPE
    answer = down_convert(bytes(sample() + zstd), 1, 500)
    assert (len(magics(answer)), len(answer)) == (3, 500)


def test_a_negative_timestamp() -> None:
    bad = batch_of(X, 1, base_timestamp=-5)
    with pytest.raises(KafkaError, match="Invalid negative timestamp -5"):
        down_convert(bad, 0)
    with pytest.raises(ConversionFailed, match="Invalid negative timestamp -5"):
        down_convert(bytes(sample() + bad), 0, 1000)


def test_a_batch_that_is_old_enough_is_copied() -> None:
    old = bytes(encode_set([Record(0, 5, b"k", b"v")], magic=0))
    assert down_convert(old, 1) == old
    assert down_convert(old, 0) == old


@given(st.binary(max_size=60), st.integers(0, 3), st.integers(0, 7), st.sampled_from([0, 1]))
def test_noise_going_down(noise: bytes, count: int, attributes: int, magic: int) -> None:
    try:
        down_convert(batch_of(noise, count, attributes=attributes), magic)
    except KafkaError:
        pass


def test_conversion_that_is_not_allowed() -> None:
    new, old = bytes(sample(base=1)), bytes(encode_set([Record(0, 5, b"k", b"v")], magic=0))
    with pytest.raises(KafkaError) as caught:
        down_convert(new, 1, allowed=False)
    assert caught.value.code == Errors.UNSUPPORTED_VERSION
    assert magics(down_convert(old + new, 1, 500, allowed=False)) == [(0, 0, 0)]
    assert down_convert(old, 1, allowed=False) == old


# --- lazily, in steps


class Reading:
    """Runs work and counts: bytes of records handled between two points of rest, and what is asked for at once."""

    def __init__(self, log: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = log
        self.in_step = self.most_in_step = self.largest_read = self.reads = 0
        encode = legacy.encode_message

        def counted(offset: int, timestamp: int, key: bytes | None, value: bytes | None, **more: int) -> bytearray:
            self.in_step += len(key or b"") + len(value or b"")
            self.most_in_step = max(self.most_in_step, self.in_step)
            return encode(offset, timestamp, key, value, **more)

        monkeypatch.setattr(legacy, "encode_message", counted)

    def read(self, at: int, length: int) -> bytes:
        self.reads += 1
        self.largest_read = max(self.largest_read, length)
        return self.log[at : at + length]

    def run(self, work: Work[bytes] | Work[None]) -> bytes:
        """The work's result; calls that are for a thread don't count as steps."""
        outcome = None
        while True:
            try:
                call = work.send(outcome)
            except StopIteration as stop:
                return stop.value or b""
            outcome, self.in_step = None, 0
            if call is not None:
                outcome, self.in_step = call(), 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.SNAPPY])
@pytest.mark.parametrize("magic", [0, 1])
def test_chunks_and_steps_are_bounded(codec: Codec, magic: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several megabytes: no step handles more than STEP bytes of records, no chunk is more than one batch larger than
    CHUNK, and nothing is read long before it is sent."""
    offsets, value = count(), os.urandom(700)
    batches = [
        build_batch([Record(next(offsets), 1, b"key", value) for _ in range(300)], codec=codec) for _ in range(30)
    ]
    log = b"".join(batches)
    reading = Reading(log, monkeypatch)
    conversion = DownConversion(reading.read, len(log), magic)
    reading.run(conversion.begin())
    assert reading.reads <= 2 + len(batches[0]) // WINDOW
    chunks = []
    while conversion.left:
        chunks.append(reading.run(conversion.chunk()))
    assert sum(map(len, chunks)) == conversion.length == len(log)
    found = [each.offset for each in decode_log(b"".join(chunks))]
    assert found == list(range(len(found)))
    assert found
    largest = max(len(build_batch([Record(at, 1, b"key", value) for at in range(300)])), *map(len, batches))
    assert max(map(len, chunks)) <= CHUNK + 2 * largest
    assert 0 < reading.most_in_step <= STEP + len(value)
    assert reading.largest_read <= max(WINDOW, largest)


def test_inner_messages_are_looked_through_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper of many tiny messages: its headers are walked in steps too."""
    log = bytes(encode_set([Record(at, 1, None, b"") for at in range(10_000)], magic=1, codec=Codec.GZIP))
    headers = most = 0
    walk = legacy.inner_headers

    def counted(inner: bytes) -> Iterator[tuple[int, BatchHeader]]:
        nonlocal headers, most
        for found in walk(inner):
            headers += 1
            most = max(most, headers)
            yield found

    monkeypatch.setattr(legacy, "inner_headers", counted)
    conversion = DownConversion(lambda at, length: log[at : at + length], len(log), 0)
    work, outcome = conversion.begin(), None
    with pytest.raises(StopIteration):
        while True:
            call = work.send(outcome)
            headers, outcome = 0, None if call is None else call()
    assert 0 < most <= 300
    assert conversion.length >= len(log)


def test_a_slice_that_has_gone() -> None:
    log = bytes(sample() + sample(base=3))
    conversion = DownConversion(lambda at, length: b"", len(log), 1)
    with pytest.raises(ConversionFailed, match="no longer there"):
        finish(conversion.begin())
