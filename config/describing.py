"""Settings as DescribeConfigs tells them: value, where it comes from, and the names that could give it instead."""

from __future__ import annotations

from typing import NamedTuple

# ConfigSource of DescribeConfigs.
TOPIC = 1
DYNAMIC_BROKER = 2
DYNAMIC_DEFAULT = 3
STATIC = 4
DEFAULT = 5
GROUP = 8

# ConfigType of DescribeConfigs; 0 is unknown.
TYPE_CODES = {
    "BOOLEAN": 1,
    "STRING": 2,
    "INT": 3,
    "SHORT": 4,
    "LONG": 5,
    "DOUBLE": 6,
    "LIST": 7,
    "CLASS": 8,
    "PASSWORD": 9,
}


class Synonym(NamedTuple):
    """One place that sets the value or would: the first of a list counts."""

    name: str
    value: str | None
    source: int


class Described(NamedTuple):
    """One setting in an answer. The value of a sensitive one is None."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    kind: int
    documentation: str
