from __future__ import annotations

import pytest

from pybroker.config.properties import Entry
from pybroker.config.yaml_file import parse_yaml


def test_dots_and_nesting() -> None:
    text = """
broker.id: 7
log:
  dirs: [/a, /b]
  segment.bytes: 1GiB
  retention:
    ms: 7d
auto.create.topics.enable: no
advertised.listeners: ~
num.partitions: 010
listener.security.protocol.map:
  INTERNAL: PLAINTEXT
  CLIENT: SSL
sasl.enabled.mechanisms:
  - PLAIN
  - SCRAM-SHA-256
"""
    assert parse_yaml(text) == [
        Entry("broker.id", "7", 2),
        Entry("log.dirs", "/a,/b", 4),
        Entry("log.segment.bytes", "1GiB", 5),
        Entry("log.retention.ms", "7d", 7),
        Entry("auto.create.topics.enable", "false", 8),
        Entry("num.partitions", "010", 10),
        Entry("listener.security.protocol.map", "INTERNAL:PLAINTEXT,CLIENT:SSL", 11),
        Entry("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256", 14),
    ]


def test_nothing() -> None:
    assert parse_yaml("") == parse_yaml("# only a comment\n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b\n- c", "line 2: "),
        ("a: [\n", "line [12]: "),
        ("- a", "line 1: must hold settings"),
        ("just text", "line 1: must hold settings"),
        ("a:\n  - [b]", "line 2: a can't hold lists"),
        ("? [a]\n: b", "line 1: the name"),
        ("a: &x\n  b: *x", "an alias that contains itself"),
        ("a: *x", "line 1: "),
    ],
)
def test_mistakes_name_their_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_yaml(text)
