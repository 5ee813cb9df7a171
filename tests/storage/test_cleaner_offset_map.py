"""The table of keys and last offsets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.storage.cleaner.offset_map import GONE, LAST, TOMBSTONE, OffsetMap

KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=60)


@given(st.lists(KEYS, max_size=5), st.integers(0, 2**40), st.integers(176, 2000))
@settings(max_examples=200, deadline=None)
def test_it_is_a_dict_of_last_offsets(groups: list[list[bytes | None]], base: int, memory: int) -> None:
    table = OffsetMap(memory, 0.9)
    expected: dict[bytes, int] = {}
    seen: list[tuple[bytes | None, int]] = []
    offset = base
    for keys in groups:
        offsets = list(range(offset, offset + len(keys)))
        offset += len(keys)
        fits = table.put(keys, offsets)
        for key, at in zip(keys, offsets, strict=True):
            if at <= table.latest_offset:
                seen.append((key, at))
                if key is not None:
                    expected[key] = at
        if not fits:
            assert table.size == table.capacity == len(expected)
            break
    assert table.size == len(expected)
    gone = [number for number, (key, at) in enumerate(seen) if key is None or expected[key] > at]
    assert table.superseded([key for key, _ in seen], [at for _, at in seen]) == gone
    if seen:
        marks = table.marks(seen[0][1], table.latest_offset)
        if marks is not None:
            assert [number for number, mark in enumerate(marks) if mark == GONE] == gone
    assert table.superseded([b"another"], [base + 10**6]) == []


def test_marks_of_tombstones() -> None:
    table = OffsetMap(10_000, 0.9)
    assert table.put([b"a", b"b", None, b"a"], [10, 11, 12, 13], [1, 3])
    assert list(table.marks(10, 13) or ()) == [GONE, TOMBSTONE, GONE, TOMBSTONE]
    assert table.put([b"a"], [20])
    assert list(table.marks(13, 20) or ()) == [GONE, LAST, LAST, LAST, LAST, LAST, LAST, LAST]
    assert table.marks(9, 10) is None and table.marks(20, 21) is None


def test_marks_are_bounded_and_the_table_fills_up() -> None:
    table = OffsetMap(4000, 0.5, most_keys=10)
    assert table.put([b"k"] * 5, [0, 1, 2, 500_000, 500_001])
    assert table.marks(0, 2) is not None and table.marks(500_000, 500_001) is None
    assert not table.put([b"%d" % number for number in range(100)], list(range(600_000, 600_100)))
    assert table.size == table.capacity
    assert table.latest_offset == 600_000 + table.capacity - 2
    assert table.superseded([b"k", b"0"], [500_000, 599_999]) == [0, 1]


def test_offsets_too_far_apart_need_another_pass() -> None:
    table = OffsetMap(4000, 0.9)
    assert table.put([b"a"], [5])
    assert not table.put([b"b"], [5 + 2**35])
    assert table.latest_offset == 5
