"""Key → last offset, for millions of keys in bounded memory (Kafka's SkimpyOffsetMap).

An open-addressing table of two 64-bit words a slot, without the keys: the first word is Python's hash of the key
(SipHash, keyed anew in every process), the second the offset, relative to the first one noted, and 28 bits of the
key's CRC32C. Keys that agree in all 92 bits are taken for equal: among 7 million keys, which is what the default
128 MiB hold, two such are there once in 10^14 passes. Probing is by double hashing over a prime number of slots.

Beside it a byte for each offset that was noted says what has become of the record, so that the copy of the dirty part
need not look at keys again. These marks get a quarter of the memory at most; what they don't reach is looked up.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from pybroker.protocol.records.header import crc32c

SLOT_BYTES = 16
_CHECK_BITS = 28
_CHECK = (1 << _CHECK_BITS) - 1
_MAX_RELATIVE = 1 << (63 - _CHECK_BITS)
_FEWEST_SLOTS = 11
_SHARE_OF_MARKS = 4

# Marks: a record is the last of its key, or must go, or is the last of its key and a tombstone.
LAST, GONE, TOMBSTONE = 0, 1, 2

Keys = Sequence[bytes | None]


class OffsetMap:
    """The table of one pass. `latest_offset` is the last offset that has been taken into account, -1 at first."""

    __slots__ = ("_base", "_marks", "_most_marks", "_slots", "_table", "capacity", "latest_offset", "size")

    def __init__(self, memory: int, load_factor: float, most_keys: int | None = None) -> None:
        """`memory` bytes at most, and no more than `most_keys` need.

        Holds at most `load_factor` times its slots: the fuller, the more slots are looked at for each key.
        """
        self._most_marks = memory // _SHARE_OF_MARKS
        slots = (memory - self._most_marks) // SLOT_BYTES
        if most_keys is not None:
            slots = min(slots, int(most_keys / load_factor) + _FEWEST_SLOTS)
        self._slots = _prime_at_most(max(slots, _FEWEST_SLOTS))
        self._table = array("q", bytes(SLOT_BYTES)) * self._slots
        self._marks = bytearray()
        self._base = -1
        self.capacity = max(1, min(int(self._slots * load_factor), self._slots - 1))
        self.size = 0
        self.latest_offset = -1

    def put(self, keys: Keys, offsets: Sequence[int], tombstones: Sequence[int] = ()) -> bool:
        """Note the offsets, which ascend, of records with these keys; those without a key are passed over.

        `tombstones` are the numbers of the records without a value. False when the table is full: `latest_offset` is
        the last offset that could be noted.
        """
        if not keys:
            return True
        if self._base < 0:
            self._base = offsets[0]
        if offsets[-1] - self._base >= _MAX_RELATIVE:
            return False
        table, slots, base, size, capacity = self._table, self._slots, self._base, self.size, self.capacity
        end = slots << 1
        latest = self.latest_offset
        marks = self._marks
        marked = min(offsets[-1] - base + 1, self._most_marks)
        if marked > len(marks):
            marks.extend(bytes(marked - len(marks)))
        else:
            marked = len(marks)
        for key, offset in zip(keys, offsets, strict=True):
            if key is not None:
                word = hash(key) or 1
                check = crc32c(key) & _CHECK
                at = word % slots << 1
                step = 0
                while (held := table[at]) != word or table[at + 1] & _CHECK != check:
                    if not held:
                        if size >= capacity:
                            self.size, self.latest_offset = size, latest
                            return False
                        table[at] = word
                        size += 1
                        break
                    if not step:
                        step = (word >> 24) % (slots - 1) + 1 << 1
                    at += step
                    if at >= end:
                        at -= end
                else:
                    earlier = table[at + 1] >> _CHECK_BITS
                    if earlier < marked:
                        marks[earlier] = GONE
                table[at + 1] = offset - base << _CHECK_BITS | check
            elif offset - base < marked:
                marks[offset - base] = GONE
            latest = offset
        self.size, self.latest_offset = size, latest
        for number in tombstones:
            at = offsets[number] - base
            if at < marked and marks[at] == LAST:
                marks[at] = TOMBSTONE
        return True

    def marks(self, first: int, last: int) -> bytearray | None:
        """The marks of the offsets from `first` to `last`, None where they don't reach."""
        start = first - self._base
        if start < 0 or last > self.latest_offset or last - self._base >= len(self._marks):
            return None
        return self._marks[start : last - self._base + 1]

    def superseded(self, keys: Keys, offsets: Sequence[int]) -> list[int]:
        """The numbers of the records that a later one of the same key replaces, and of those without a key."""
        table, slots, base = self._table, self._slots, self._base
        end = slots << 1
        found = []
        for number, key in enumerate(keys):
            if key is None:
                found.append(number)
                continue
            word = hash(key) or 1
            at = word % slots << 1
            step = 0
            while held := table[at]:
                if held == word:
                    noted = table[at + 1]
                    if noted & _CHECK == crc32c(key) & _CHECK:
                        if (noted >> _CHECK_BITS) + base > offsets[number]:
                            found.append(number)
                        break
                if not step:
                    step = (word >> 24) % (slots - 1) + 1 << 1
                at += step
                if at >= end:
                    at -= end
        return found


def _prime_at_most(number: int) -> int:
    """The largest prime up to `number` (3 or more)."""
    candidate = number if number % 2 else number - 1
    while any(candidate % divisor == 0 for divisor in range(3, int(candidate**0.5) + 1, 2)):
        candidate -= 2
    return candidate
