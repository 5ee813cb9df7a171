"""Putting cleaned segments in the place of old ones, so that a crash at any step loses nothing.

Order of the renames, on which recovery relies: the new files `.cleaned` → `.swap` (from here on they win), the old ones
→ `.deleted`, the new ones' suffix off. All of it happens in one go on the event loop, so that no append, read or
truncation sees a step of it. Whoever still reads an old file holds its own reference.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pybroker.storage.recovery import CLEANED_SUFFIX, SWAP_SUFFIX
from pybroker.storage.retention import remove_renamed_later
from pybroker.storage.segment import DELETED_SUFFIX, Segment

if TYPE_CHECKING:
    from pybroker.storage.log import Log


def remove_output(directory: os.PathLike[str]) -> None:
    """Remove what an interrupted pass left behind. OSError."""
    with suppress(FileNotFoundError):
        for name in os.listdir(directory):
            if name.endswith(CLEANED_SUFFIX):
                os.unlink(os.path.join(directory, name))


def replace(log: Log, old: Sequence[Segment]) -> Segment:
    """Put `<first base>.log.cleaned` in the place of `old`, neighbours in the log and not the active one; the new one.

    OSError (EIO, whatever it was) when it can't be done: the log on disk is as recovery will find it, and must not be
    gone on with.
    """
    first = old[0].base_offset
    number = log.segment_number(first)
    try:
        new = Segment(log.directory, first, log.config, log.host.cache, suffix=CLEANED_SUFFIX)
        new.rename(SWAP_SUFFIX)
        for segment in old:
            segment.rename(DELETED_SUFFIX)
        new.rename("")
        for segment in old[1:]:
            log.producers.remove_snapshot(segment.base_offset)
    except OSError as error:
        raise OSError(errno.EIO, f"cleaned segments of {log!r} could not be put in place: {error}") from error
    log.segments[number : number + len(old)] = [new]
    log.bases[number : number + len(old)] = [first]
    remove_renamed_later(log, list(old))
    return new
