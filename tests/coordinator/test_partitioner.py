"""Java's String.hashCode, by values that Java gives."""

from __future__ import annotations

import pytest

from pybroker.coordinator.partitioner import java_hash, partition_for


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),  # the one that has no absolute value
        ("ü", 252),
        ("\U0001f600", 1772899),  # a surrogate pair: two units
        ("\ud83d", 55357),
    ],
)
def test_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_the_sign_is_cut_off() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert {partition_for(f"group-{number}", 50) for number in range(1000)} == set(range(50))
