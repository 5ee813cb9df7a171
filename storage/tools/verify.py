"""Looking at whole log directories while no broker uses them: what is wrong, and where."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pybroker.protocol.types import TopicPartition
from pybroker.storage import checkpoints, meta_properties
from pybroker.storage.checkpoints import CorruptCheckpoint
from pybroker.storage.directory import (
    LOCK_FILE,
    DirectoryLock,
    has_clean_shutdown,
    list_names,
    parse_directory,
)
from pybroker.storage.meta_properties import WrongDirectory, read_meta_properties
from pybroker.storage.tools.verify_partition import Finding, Job, Report, verify_partition

WORTH_PROCESSES = 512 << 20  # bytes of logs
CHECKPOINTS = (
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.REPLICATION_OFFSET,
    checkpoints.CLEANER_OFFSET,
)

Offsets = dict[TopicPartition, int]


class Found(NamedTuple):
    """A partition directory of a log directory."""

    home: Path
    path: Path
    topic_partition: TopicPartition
    suffix: str


def lock(directories: Iterable[Path]) -> list[DirectoryLock]:
    """Keep brokers out while we look. WrongDirectory where one is running; OSError for what is no directory."""
    held = []
    for directory in directories:
        if not directory.is_dir():
            raise WrongDirectory(f"{directory} is no directory.")
        if (directory / LOCK_FILE).exists():  # otherwise no broker was ever here, and we leave no trace
            held.append(DirectoryLock(directory))
    return held


class Verification:
    """One look at one or more log directories of one broker."""

    def __init__(self, directories: Sequence[Path], *, deep: bool = False, workers: int = 1) -> None:
        """`deep` looks at every record, too; `workers` processes share the partitions."""
        self._directories = directories
        self._deep = deep
        self._workers = workers
        self.reports: list[Report] = []

    def run(self) -> Iterator[Finding]:
        """Everything found, as it is found. Directories have to be locked. OSError when they can't be read."""
        jobs: list[Job] = []
        partitions: dict[TopicPartition, Found] = {}
        for directory in self._directories:
            yield from self._directory(directory)
            yield from self._partitions(directory, partitions, jobs)
        by_path = {found.path: found for found in partitions.values()}
        for report in _verify_all(jobs, self._workers):
            self.reports.append(report)
            yield from report.findings
            yield from self._compare(report, by_path.get(report.directory))

    def _directory(self, directory: Path) -> Iterator[Finding]:
        path = directory / meta_properties.FILE_NAME
        try:
            if read_meta_properties(directory) is None:
                yield Finding(path, "note", "is missing; it is written anew at the next start")
        except WrongDirectory as error:
            yield Finding(path, "error", str(error))
        if not has_clean_shutdown(directory):
            yield Finding(directory, "note", "was not left by a clean stop; its logs are recovered at the next start")
        for name in CHECKPOINTS:
            try:
                checkpoints.read_offsets(directory / name)
            except CorruptCheckpoint as error:
                yield Finding(directory / name, "error", str(error))

    def _partitions(
        self, directory: Path, partitions: dict[TopicPartition, Found], jobs: list[Job]
    ) -> Iterator[Finding]:
        clean = has_clean_shutdown(directory)
        flushed = read_if_readable(directory / checkpoints.RECOVERY_POINT)
        for path in list_names(directory):
            try:
                topic_partition, suffix = parse_directory(path)
            except WrongDirectory as error:
                yield Finding(path, "error", str(error))
                continue
            if suffix:
                yield Finding(path, "note", f"is a {suffix.removeprefix('-')} replica")
                continue
            found = Found(directory, path, topic_partition, suffix)
            if topic_partition in partitions:
                yield Finding(path, "error", f"{partitions[topic_partition].path} holds the same partition")
            partitions.setdefault(topic_partition, found)
            jobs.append(Job(path, clean, flushed.get(topic_partition, 0), self._deep))

    def _compare(self, report: Report, found: Found | None) -> Iterator[Finding]:
        """The checkpoints against what the partition holds."""
        if found is None or report.end < 0:
            return
        for name in CHECKPOINTS:
            path = found.home / name
            offset = read_if_readable(path).get(found.topic_partition, 0)
            if offset > report.end:
                severity = "error" if name == checkpoints.LOG_START else "note"
                told = f"{found.path.name} ends at offset {report.end}, the checkpoint says {offset}"
                yield Finding(path, severity, told)  # type: ignore[arg-type]


def read_if_readable(path: Path) -> Offsets:
    """The offsets of a checkpoint, none where it can't be read."""
    try:
        return checkpoints.read_offsets(path)
    except CorruptCheckpoint:
        return {}


def _verify_all(jobs: list[Job], workers: int) -> Iterator[Report]:
    """In processes where there is much to read: starting one costs as much as reading some 100 MB."""
    workers = min(workers, len(jobs))
    if workers > 1 and sum(map(_size, jobs)) >= WORTH_PROCESSES:
        return _in_processes(verify_partition, sorted(jobs, key=_size, reverse=True), workers)
    return map(verify_partition, jobs)


def _in_processes(work: Callable[[Job], Report], jobs: list[Job], workers: int) -> Iterator[Report]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        for future in as_completed([pool.submit(work, job) for job in jobs]):
            yield future.result()


def _start_worker() -> None:
    """A worker leaves Ctrl-C to its parent, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO)


def _size(job: Job) -> int:
    try:
        return sum(path.stat().st_size for path in job.directory.glob("*.log"))
    except OSError:
        return 0  # the look itself meets the error again, and reports it
