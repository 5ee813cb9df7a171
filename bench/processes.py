"""What a broker costs: CPU time and memory of a process tree, read from /proc (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Figures = dict[str, float]
KEPT_FREE = 1 << 30

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(pids: Iterable[int]) -> set[int]:
    """These processes and all their descendants that live now."""
    found = set(pids)
    for pid in list(found):
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found |= tree(int(child) for child in (task / "children").read_text().split())
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of the tree so far, with that of processes which have ended, s."""
    ticks = 0
    for pid in tree(pids):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS


def memory_mb(pids: Iterable[int]) -> float:
    """Proportional set size of the tree, MiB."""
    kib = 0
    for pid in tree(pids):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kib += int(line.split()[1])
    return kib / 1024


@contextmanager
def measured(pids: Iterable[int]) -> Iterator[Figures]:
    """Measures the block; it puts `bytes` or `n` into the figures, and whatever else it has found.

    Adds: s (time taken), MB/s or per_s, cpu_s, and cpu_s_per_GB or cpu_us_each. Dirty pages of earlier loads are
    written back first.
    """
    pids = list(pids)
    figures: Figures = {}
    os.sync()
    cpu, began = cpu_seconds(pids), time.perf_counter()
    yield figures
    figures["s"] = taken = time.perf_counter() - began
    figures["cpu_s"] = spent = cpu_seconds(pids) - cpu
    if size := figures.pop("bytes", 0):
        figures["MB/s"] = size / taken / 1e6
        figures["cpu_s_per_GB"] = spent / (size / 1e9)
    if count := figures.pop("n", 0):
        figures["per_s"] = count / taken
        figures["cpu_us_each"] = spent / count * 1e6


def percentiles(seconds: list[float]) -> Figures:
    """p50_us, p99_us, p999_us and max_us."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6

    return {"p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999), "max_us": ordered[-1] * 1e6}


class PageCache:
    """Keeps the kernel's free memory small, so that what a measure writes takes the place of pages that are cached.

    A virtual machine gets memory from its host at first touch, and may hand it back whenever it is free. Writing to
    free memory is then three times as expensive as to memory in use, for whoever happens to get it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "page-cache"

    def fill(self) -> None:
        """Call before each measure: reads a file of holes that is as large as what was free, all but KEPT_FREE."""
        spare = _free_memory() - KEPT_FREE
        with self._file.open("ab") as file:
            file.truncate(file.tell() + max(spare, 0))
        with self._file.open("rb", buffering=0) as file:
            buffer = bytearray(1 << 20)
            while file.readinto(buffer):
                pass


def _free_memory() -> int:
    """Bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemFree"].split()[0]) * 1024
    with suppress(OSError, ValueError):  # no limit ("max"), or no such files
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    return free
