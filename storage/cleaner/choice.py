"""Which log to clean next, and how far (Kafka's LogCleanerManager)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pybroker.storage.log import Log

_NEVER_MS = 2**63 - 1


class Cleanable(NamedTuple):
    """What of a log could be cleaned: [first_dirty, first_uncleanable), whole segments of `dirty_bytes`.

    `clean_bytes` are below. `overdue`: something in it has waited for longer than max.compaction.lag.ms.
    """

    log: Log
    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty share."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def worthwhile(self) -> bool:
        """Whether it is dirty enough, or overdue."""
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio)


def first_dirty_offset(log: Log) -> int:
    """Where the clean part ends; a checkpoint that can't be right stands for a log that is dirty from its start."""
    if log.log_start_offset <= log.cleaned_to <= log.log_end_offset:
        return log.cleaned_to
    return log.log_start_offset


def examine(log: Log, now_ms: int) -> Cleanable:
    """What could be cleaned of a log now: nothing undecided or not replicated, nothing of the active segment, nothing
    younger than min.compaction.lag.ms. OSError when the disk fails."""
    first_dirty = first_dirty_offset(log)
    limit = min(log.last_stable_offset, log.active.base_offset)
    segments = log.segments[:-1]
    start = max(log.segment_number(first_dirty), 0)
    lag = log.config.min_compaction_lag_ms
    if lag > 0:
        for segment in segments[start:]:
            if segment.largest_timestamp > now_ms - lag:
                limit = min(limit, segment.base_offset)
                break
    stop = max(log.segment_number(limit), 0)  # the segment that holds `limit` is not cleaned
    first_uncleanable = log.bases[stop]
    dirty = segments[start:stop]
    clean_bytes = sum(segment.size for segment in segments[: min(start, stop)])
    dirty_bytes = sum(segment.size for segment in dirty)
    overdue = False
    if dirty and log.config.max_compaction_lag_ms < _NEVER_MS:
        until = now_ms - log.config.max_compaction_lag_ms
        times = [segment.first_timestamp for segment in dirty]
        overdue = any(0 < time < until for time in times)
    return Cleanable(log, first_dirty, first_uncleanable, clean_bytes, dirty_bytes, overdue)
