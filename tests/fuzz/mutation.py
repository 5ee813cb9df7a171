"""Recorded requests, and what can be done to them. All choices come from the random source that is handed in."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from random import Random

from crc32c import crc32c

from tests.support import schema
from tests.support.data import RELEASES, frames

# Numbers at which counters, sizes and signs turn.
NUMBERS = (0, 1, -1, 2, 127, 128, -128, 255, 32767, -32768, 65535, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1)
VARINTS = (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x01", b"\xff" * 10, b"\x80" * 4)
METADATA, PRODUCE = 3, 0


@cache
def corpus() -> tuple[bytes, ...]:
    """Every recorded request of both releases, without its size; always in the same order."""
    rows = {row["request"] for release in RELEASES for row in frames(release)}
    return tuple(sorted(rows))


@cache
def recorded_topics() -> dict[bytes, str]:
    """Topic ids that the recorded requests may name, and the topics they were."""
    found: dict[bytes, str] = {}
    for release in RELEASES:
        for row in frames(release):
            if row["api"] == METADATA and row["version"] >= 10 and row["response"]:
                _, body = schema.decode_response(METADATA, row["version"], row["response"])
                found.update((each["TopicId"], each["Name"]) for each in body["Topics"] if any(each["TopicId"]))
    return found


class Mutator:
    """Makes frames from the corpus, with the recorded topic ids replaced by those of the broker under test."""

    def __init__(self, topic_ids: dict[bytes, bytes] | None = None) -> None:
        """`topic_ids`: recorded id → the broker's own."""
        self.frames = []
        for frame in corpus():
            for recorded, own in (topic_ids or {}).items():
                frame = frame.replace(recorded, own)
            self.frames.append(frame)

    def frame(self, random: Random) -> bytes:
        """One frame behind its size field: one in eight as it was recorded, the others changed once to four times."""
        data = bytearray(random.choice(self.frames))
        if random.random() < 0.125:
            return struct.pack(">i", len(data)) + data
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            random.choice(CHANGES)(data, random, self.frames)
        if random.random() < 0.5:
            mend_checksums(data)
        return self._size(len(data), random) + data

    def _size(self, size: int, random: Random) -> bytes:
        """Mostly the right one."""
        if random.random() < 0.97:
            return struct.pack(">i", size)
        return struct.pack(">i", random.choice((0, -1, size + 1, max(size - 1, 0), 1 << 20, (1 << 31) - 1, 100 << 20)))


Change = Callable[[bytearray, Random, list[bytes]], None]


def _at(data: bytearray, random: Random) -> int:
    """A position; every other time behind the header, where the interesting fields are."""
    return (
        random.randrange(min(len(data), 14), len(data) + 1)
        if random.random() < 0.5
        else random.randrange(len(data) + 1)
    )


def flip_bits(data: bytearray, random: Random, others: list[bytes]) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        if data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def set_number(data: bytearray, random: Random, others: list[bytes]) -> None:
    size, number = random.choice((1, 2, 4, 8)), random.choice(NUMBERS)
    at = _at(data, random)
    data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "big")


def set_varint(data: bytearray, random: Random, others: list[bytes]) -> None:
    at = _at(data, random)
    data[at : at + 1] = random.choice(VARINTS)


def cut(data: bytearray, random: Random, others: list[bytes]) -> None:
    del data[_at(data, random) :]


def delete_piece(data: bytearray, random: Random, others: list[bytes]) -> None:
    at = _at(data, random)
    del data[at : at + random.choice((1, 2, 4, 16, 64))]


def repeat_piece(data: bytearray, random: Random, others: list[bytes]) -> None:
    at = _at(data, random)
    piece = data[at : at + random.choice((1, 4, 16, 64, 256))]
    data[at:at] = piece * random.choice((1, 2, 50))


def insert_noise(data: bytearray, random: Random, others: list[bytes]) -> None:
    at = _at(data, random)
    data[at:at] = random.randbytes(random.choice((1, 4, 30, 1000)))


def splice(data: bytearray, random: Random, others: list[bytes]) -> None:
    """The end of another request behind the start of this one."""
    other = random.choice(others)
    data[_at(data, random) :] = other[random.randrange(len(other) + 1) :]


def other_version(data: bytearray, random: Random, others: list[bytes]) -> None:
    if len(data) >= 4:
        data[2:4] = random.choice((*range(20), 99, -1)).to_bytes(2, "big", signed=True)


def other_api(data: bytearray, random: Random, others: list[bytes]) -> None:
    if len(data) >= 4:
        data[0:2] = random.choice((*range(95), 999, -1)).to_bytes(2, "big", signed=True)


CHANGES: tuple[Change, ...] = (
    flip_bits,
    flip_bits,
    set_number,
    set_number,
    set_varint,
    cut,
    delete_piece,
    repeat_piece,
    insert_noise,
    splice,
    other_version,
    other_api,
)


def mend_checksums(data: bytearray) -> None:
    """Give what looks like a record batch the checksum of its bytes, so that damage inside is found by others."""
    if len(data) < 90 or data[0:2] != b"\0\0":
        return
    for at in range(20, len(data) - 61):
        if data[at + 16] == 2 and data[at] == 0 and data[at + 8] == 0:
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if at + 61 <= end <= len(data):
                data[at + 17 : at + 21] = crc32c(bytes(data[at + 21 : end])).to_bytes(4, "big")
                return
