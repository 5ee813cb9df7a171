"""Reading Java properties files, Kafka's own kind (java.util.Properties.load)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


class Entry(NamedTuple):
    """One setting of a file and the line on which it starts, counted from 1."""

    name: str
    value: str
    line: int


def parse_properties(text: str) -> list[Entry]:
    """All entries in their order. Raises ValueError, which names the line, for a malformed \\u escape."""
    entries = []
    for number, line in _logical_lines(text):
        split = _end_of_key(line)
        rest = line[split:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        try:
            entries.append(Entry(_unescape(line[:split]), _unescape(rest), number))
        except ValueError:
            raise ValueError(f"line {number}: \\u must be followed by four hexadecimal digits") from None
    return entries


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, without comments and empty ones."""
    # Not splitlines: Java ends a line at \n, \r or both only.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    number = 0
    while number < len(lines):
        start = number
        line = lines[number].lstrip(_BLANKS)
        number += 1
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            line = line[:-1]
            if number == len(lines):
                break
            line += lines[number].lstrip(_BLANKS)
            number += 1
        yield start + 1, line


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _end_of_key(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 1
        elif line[position] in "=:" or line[position] in _BLANKS:
            return position
        position += 1
    return len(line)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            parts.append(character)
        elif position < len(text):
            escaped = text[position]
            position += 1
            if escaped == "u":
                digits = text[position : position + 4]
                if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                    raise ValueError(digits)
                parts.append(chr(int(digits, 16)))
                position += 4
            else:
                parts.append(_ESCAPES.get(escaped, escaped))
    # Java pairs surrogates by itself.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
