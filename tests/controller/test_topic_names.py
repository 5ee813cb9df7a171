from __future__ import annotations

import pytest

from pybroker.controller import topic_names
from pybroker.protocol.errors import Errors, KafkaError

CHARACTERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "a" * 249, "__consumer_offsets"])
def test_good_names(name: str) -> None:
    topic_names.validate(name)
    assert topic_names.is_valid(name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
        ("a b", f"'a b' {CHARACTERS}"),
        ("a/b", f"'a/b' {CHARACTERS}"),
        ("tést", f"'tést' {CHARACTERS}"),
        ("a\n", f"'a\n' {CHARACTERS}"),
    ],
)
def test_bad_names(name: str, problem: str) -> None:
    with pytest.raises(KafkaError) as refused:
        topic_names.validate(name)
    assert refused.value.code == Errors.INVALID_TOPIC_EXCEPTION
    assert refused.value.message == f"Topic name is invalid: {problem}"
    assert not topic_names.is_valid(name)


def test_collisions() -> None:
    similar = topic_names.Similar()
    similar.update(["a.b", "c", "a_b_c"])
    assert similar.to("a_b") == ["a.b"]
    assert similar.to("a.b") == []
    assert similar.to("a.b.c") == ["a_b_c"]
    assert similar.to("c") == []
