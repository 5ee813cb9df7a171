from __future__ import annotations

import pytest

from pybroker.config.properties import Entry, parse_properties


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=b", [Entry("a", "b", 1)]),
        ("a: b\nc d\n", [Entry("a", "b", 1), Entry("c", "d", 2)]),
        ("  a  =  b c  ", [Entry("a", "b c  ", 1)]),
        ("a==b", [Entry("a", "=b", 1)]),
        ("a : = b", [Entry("a", "= b", 1)]),
        ("# a=b\n! c\n\n a", [Entry("a", "", 4)]),
        ("a=1,\\\n   2,\\\n\t3\nb=4", [Entry("a", "1,2,3", 1), Entry("b", "4", 4)]),
        ("a=x\\\\\nb=y", [Entry("a", "x\\", 1), Entry("b", "y", 2)]),
        ("a=x\\", [Entry("a", "x", 1)]),
        ("a=1\\\n# no comment", [Entry("a", "1# no comment", 1)]),
        (r"a\:b\=c\ d=e", [Entry("a:b=c d", "e", 1)]),
        (r"a=\t\n\r\f\x\u00e9\\", [Entry("a", "\t\n\r\fxé\\", 1)]),
        (r"a=\ud83d\ude00", [Entry("a", "😀", 1)]),
        ("a=1\r\nb=2\rc=3", [Entry("a", "1", 1), Entry("b", "2", 2), Entry("c", "3", 3)]),
        ("a=é\x0b\x85", [Entry("a", "é\x0b\x85", 1)]),
        ("", []),
    ],
)
def test_as_java_reads_them(text: str, entries: list[Entry]) -> None:
    assert parse_properties(text) == entries


def test_a_bad_escape_names_its_line() -> None:
    with pytest.raises(ValueError, match="line 2: "):
        parse_properties("a=b\nc=\\u12g4")
