"""How much is done between two points of rest: never more for a larger set. Counted, whatever the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pybroker.protocol.compression import Codec
from pybroker.protocol.records import header
from pybroker.protocol.records.convert import validating
from pybroker.protocol.records.down_convert import DownConversion
from pybroker.protocol.records.header import Buffer
from pybroker.protocol.records.legacy import encode_set
from pybroker.protocol.records.reading import LARGE
from pybroker.protocol.records.record import Record, build_batch
from pybroker.protocol.records.validate import TopicRules
from pybroker.protocol.work import Work

# A small record takes about 40 calls to be read and written again, and after STEP / RECORD = 160 there is a rest.
MOST_CALLS = 160 * 60
NOW = 1_700_000_000_000


class Steps:
    """Does work and counts the calls of Python functions in its steps, and how many bytes are summed up in one go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most_calls = self.calls = self.most_summed = 0
        self._in_step = False
        for name in ("crc32", "crc32c"):
            monkeypatch.setattr(header, name, self._counting(getattr(header, name)))

    def _counting(self, sum_up: Any) -> Any:
        def counted(data: Buffer) -> int:
            if self._in_step:
                self.most_summed = max(self.most_summed, len(data))
            return int(sum_up(data))

        return counted

    def _profile(self, frame: object, event: str, argument: object) -> None:
        self.calls += event == "call"  # a generator that goes on counts too

    def run(self, work: Work[Any]) -> Any:
        """The work's result; calls that are for a thread don't count."""
        outcome = None
        while True:
            self.calls, self._in_step = 0, True
            sys.setprofile(self._profile)
            try:
                call = work.send(outcome)
            except StopIteration as stop:
                return stop.value
            finally:
                sys.setprofile(None)
                self._in_step = False
                self.most_calls = max(self.most_calls, self.calls)
            outcome = None if call is None else call()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def records_of(count: int) -> Iterator[Record]:
    return (Record(at, NOW, b"k", b"v%d" % at) for at in range(count))


def packed(count: int, magic: int, codec: Codec) -> bytes:
    if magic == 2:
        return bytes(build_batch(records_of(count), codec=codec))
    return bytes(encode_set(records_of(count), magic=magic, codec=codec))


CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
WAYS_IN: list[tuple[int, Codec, dict[str, Any]]] = [
    *((magic, codec, {}) for magic in (0, 1) for codec in CODECS),
    *((2, codec, {}) for codec in Codec),
    (2, Codec.NONE, {"codec": Codec.LZ4}),
    (2, Codec.ZSTD, {"codec": Codec.NONE}),
    (2, Codec.GZIP, {"compacted": True}),
    (2, Codec.NONE, {"magic": 1}),
]


@pytest.mark.parametrize("count", [1000, 8000])
@pytest.mark.parametrize(("magic", "codec", "rules"), WAYS_IN)
def test_on_the_way_in(count: int, magic: int, codec: Codec, rules: dict[str, Any], steps: Steps) -> None:
    data = memoryview(bytearray(packed(count, magic, codec)))
    done = steps.run(validating(data, TopicRules("t-0", **rules), base_offset=0, leader_epoch=0, now=NOW))
    assert done.last_offset == count - 1
    assert 1000 < steps.most_calls < MOST_CALLS


@pytest.mark.parametrize("count", [1000, 8000])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_on_the_way_out(count: int, codec: Codec, magic: int, steps: Steps) -> None:
    log = packed(count, 2, codec)
    conversion = DownConversion(lambda at, length: log[at : at + length], len(log), magic)
    steps.run(conversion.begin())
    while conversion.left:
        steps.run(conversion.chunk())
    assert 1000 < steps.most_calls < MOST_CALLS


@pytest.mark.parametrize("target", [None, Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    ("magic", "codec", "count"), [(0, 0, 1), (1, 0, 1), (0, 1, 32), (1, 1, 32), (2, 0, 32), (2, 1, 32)]
)
def test_large_checksums_are_for_threads(magic: int, codec: int, count: int, target: int | None, steps: Steps) -> None:
    records = [Record(at, NOW, None, os.urandom(2 * LARGE // count)) for at in range(count)]
    data = build_batch(records, codec=codec) if magic == 2 else encode_set(records, magic=magic, codec=codec)
    rules = TopicRules("t-0", codec=target)
    done = steps.run(validating(memoryview(data), rules, base_offset=0, leader_epoch=0, now=NOW))
    assert len(done.records) > LARGE > steps.most_summed
