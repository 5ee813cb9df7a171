"""Recovery of many partitions at start: in worker processes where there is much to read, else in this one.

Starting a Python process costs more than scanning 100 MB, and threads bring nothing under the interpreter lock.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pybroker.storage.files import PageCache
from pybroker.storage.loader import Loading, bytes_to_scan, load_partition

logger = logging.getLogger(__name__)

WORTH_A_POOL = 256 << 20  # bytes to scan
_PROGRESS_SECONDS = 5.0


class Recovery(NamedTuple):
    """How the recovery of one partition went: `error` is what load_partition raised, if anything."""

    loading: Loading
    recovery_point: int
    truncated_bytes: int
    error: Exception | None


def recover_all(loadings: Sequence[Loading], workers: int, *, worth_a_pool: int = WORTH_A_POOL) -> Iterator[Recovery]:
    """Recover every partition, so that it can be loaded as after a clean stop; results in the order they are ready.

    `workers` is num.recovery.threads.per.data.dir times the number of directories; progress goes to the log.
    """
    sizes = [_size(loading) for loading in loadings]
    progress = _Progress(len(loadings), sum(sizes))
    workers = min(workers, len(loadings))
    if workers > 1 and sum(sizes) >= worth_a_pool:
        # The largest first, so that no worker ends up alone with it.
        order = sorted(zip(sizes, loadings, strict=True), key=lambda pair: -pair[0])
        results = _in_processes([loading for _, loading in order], workers)
    else:
        results = map(recover, loadings)
    by_directory = {loading.directory: size for loading, size in zip(loadings, sizes, strict=True)}
    for result in results:
        progress.done(by_directory[result.loading.directory])
        yield result


def recover(loading: Loading) -> Recovery:
    """Recover one partition and let go of it again."""
    try:
        loaded = load_partition(loading, PageCache())
    except (OSError, ValueError) as error:
        return Recovery(loading, 0, 0, error)
    for segment in loaded.segments:
        segment.release()
    return Recovery(loading, loaded.recovery_point, loaded.truncated_bytes, None)


def _in_processes(loadings: Sequence[Loading], workers: int) -> Iterator[Recovery]:
    # Hardly any start needs these, and they take milliseconds to import.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    logger.info("Recovering in %d processes", workers)
    context = multiprocessing.get_context("spawn")
    left = {loading.directory: loading for loading in loadings}
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            for future in as_completed([pool.submit(recover, loading) for loading in loadings]):
                result = future.result()
                del left[result.loading.directory]
                yield result
        except BrokenProcessPool:
            logger.warning("A recovery process died; this one goes on with %d partitions", len(left))
    # A repair depends on nothing but what lies on disk, so it can be done again from any point.
    yield from map(recover, left.values())


def _start_worker() -> None:
    """A worker leaves Ctrl-C to the broker, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO)


def _size(loading: Loading) -> int:
    try:
        return bytes_to_scan(loading.directory, loading.recovery_point)
    except OSError:
        return 0  # the recovery itself meets the error again, and reports it


class _Progress:
    """A log line now and then while it takes long."""

    def __init__(self, partitions: int, size: int) -> None:
        self._partitions = partitions
        self._size = size
        self._done = self._bytes = 0
        self._next = time.monotonic() + _PROGRESS_SECONDS

    def done(self, size: int) -> None:
        self._done += 1
        self._bytes += size
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_SECONDS
            logger.info(
                "Recovered %d of %d partitions, %d of %d MB",
                self._done,
                self._partitions,
                self._bytes >> 20,
                self._size >> 20,
            )
