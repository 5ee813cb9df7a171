"""What the broker and its cleaning processes tell one another, pickled; and how segments are grouped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pybroker.storage.segment import Segment

if TYPE_CHECKING:
    from pybroker.config import LogConfig

MOST_IN_GROUP = 32  # each costs some renames in one go on the event loop: together a millisecond or two
_MAX_RELATIVE_OFFSET = 2**31 - 1


class LastRecord(NamedTuple):
    """Where a producer that is known to the log stands: its last data batch ends at `offset`, -1 if none is known."""

    offset: int
    epoch: int


class Job(NamedTuple):
    """One pass over one log.

    `bases` are the base offsets of the segments below `first_uncleanable`, ascending, and `later` those of the others,
    whose transaction indexes count too. [first_dirty, first_uncleanable) has not been cleaned yet. `memory` is for the
    table of keys, in bytes, and `bytes_per_second` bounds reading and writing together.
    """

    directory: Path
    config: LogConfig
    bases: list[int]
    later: list[int]
    first_dirty: int
    first_uncleanable: int
    last_records: dict[int, LastRecord]
    now_ms: int
    memory: int
    load_factor: float
    bytes_per_second: float


class Cleaned(NamedTuple):
    """A group of segments is cleaned: `<first base>.log.cleaned` and its indexes are durable and replace them all."""

    bases: list[int]


class Note(NamedTuple):
    """Something for the broker's log."""

    level: int
    text: str


class Finished(NamedTuple):
    """The pass is over. Every record below `end_offset` is clean, unless the log begins a newer one there."""

    end_offset: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_kept: int
    keys: int
    seconds: float


class Failed(NamedTuple):
    """The pass could not be done: `errno` of an OSError, 0 for a log that can't be read."""

    errno: int
    why: str


Message = Cleaned | Note | Finished | Failed


def group(segments: Sequence[Segment], config: LogConfig, first_uncleanable: int) -> list[list[Segment]]:
    """Neighbours that fit into one segment together, by size, size of indexes and range of offsets."""
    groups: list[list[Segment]] = []
    size = offset_entries = time_entries = 0
    for number, segment in enumerate(segments):
        end = segments[number + 1].base_offset if number + 1 < len(segments) else first_uncleanable
        size += segment.size
        offset_entries += segment.offset_index.entries
        time_entries += segment.time_index.entries
        if (
            groups
            and size <= config.segment_bytes
            and offset_entries <= segment.offset_index.max_entries
            and time_entries <= segment.time_index.max_entries
            and end - 1 - groups[-1][0].base_offset <= _MAX_RELATIVE_OFFSET
            and len(groups[-1]) < MOST_IN_GROUP
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size = segment.size
            offset_entries, time_entries = segment.offset_index.entries, segment.time_index.entries
    return groups
