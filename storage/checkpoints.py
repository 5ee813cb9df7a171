"""Kafka's checkpoint files: small texts, one version line, one count line, one line an entry.

`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`, `replication-offset-checkpoint` and
`cleaner-offset-checkpoint` stand in each log directory, with lines `topic partition offset`; the partition's own
`leader-epoch-checkpoint`, with lines `epoch start-offset`, has the same frame. All are replaced whole: written to
`<name>.tmp`, synced, renamed, so that a crash leaves the old or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from pybroker.protocol.types import TopicPartition

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
REPLICATION_OFFSET = "replication-offset-checkpoint"
CLEANER_OFFSET = "cleaner-offset-checkpoint"
VERSION = 0
_IN_LOG_DIRECTORY = frozenset({RECOVERY_POINT, LOG_START, REPLICATION_OFFSET, CLEANER_OFFSET})


class CorruptCheckpoint(ValueError):
    """The file cannot be read as a checkpoint; the message names the file, the line and the remedy."""


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint in a log directory; none when the file is missing or empty.

    CorruptCheckpoint when it is unreadable, OSError when the disk fails.
    """
    offsets: dict[TopicPartition, int] = {}
    for number, fields in read_lines(path, 3):
        try:
            offsets[TopicPartition(fields[0], int(fields[1]))] = int(fields[2])
        except ValueError:
            raise broken(path, f"line {number} is no 'topic partition offset'") from None
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file; blocks until the new one is durable. OSError when the disk fails."""
    write_lines(path, [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def read_lines(path: Path, width: int) -> list[tuple[int, list[str]]]:
    """(line number, fields) of every entry of a checkpoint of `width` fields; [] for a missing or empty file."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise broken(path, "it is not text") from None
    if not text:
        return []
    lines = text.split("\n")
    if lines[0] != str(VERSION):
        raise broken(path, f"its version is {lines[0][:40]!r}, not {VERSION}")
    try:
        count = int(lines[1])
    except (IndexError, ValueError):
        raise broken(path, "line 2 does not hold the number of entries") from None
    body = [line for line in lines[2:] if line]
    if count != len(body):
        raise broken(path, f"it announces {count} entries and holds {len(body)}")
    entries = []
    for number, line in enumerate(body, 3):
        fields = line.split()
        if len(fields) != width:
            raise broken(path, f"line {number} has {len(fields)} fields, not {width}")
        entries.append((number, fields))
    return entries


def readable_lines(path: Path, width: int) -> list[list[str]]:
    """For tools: the fields of every line that can be an entry of `width` fields, whatever the rest of the file is."""
    try:
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        return []
    entries = [line.split() for line in lines[2:]]
    return [
        fields
        for fields in entries
        if len(fields) == width and "\ufffd" not in fields[0] and all(_is_number(text) for text in fields[width - 2 :])
    ]


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal()


def write_lines(path: Path, lines: Iterable[str], *, sync: bool = True) -> None:
    """Replace the file with these entries, through `<name>.tmp`."""
    entries = list(lines)
    replace_file(path, "".join(f"{line}\n" for line in [str(VERSION), str(len(entries)), *entries]).encode(), sync=sync)


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put `data` in the place of `path`, so that a crash leaves the old content or the new one."""
    temporary = f"{path}.tmp"
    with open(temporary, "wb", buffering=0) as file:
        file.write(data)
        if sync:
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if sync:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames, creations and removals inside a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def broken(path: Path, what: str) -> CorruptCheckpoint:
    """The error for an unreadable checkpoint, with what an operator can do about it."""
    directory = path.parent if path.name in _IN_LOG_DIRECTORY else path.parent.parent
    return CorruptCheckpoint(
        f"{path} cannot be read: {what}. Remove it to have its content rebuilt from the logs. {repair_hint(directory)}"
    )


def repair_hint(directory: Path) -> str:
    """The end of a message about a log directory that `storage/tools/repair` knows a remedy for."""
    return f"The command `pybroker log repair {directory}` offers this, and keeps a backup."
