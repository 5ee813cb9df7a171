"""Reads that the page cache lacks: a thread pulls them in, the loop reads again, and in the end waits for the disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pybroker.broker.cold import MOST_ROUNDS, read_cold
from pybroker.storage.files import FileSlice, PageCache, WouldBlock
from tests.storage.logs import append, batch, host, make_log


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def test_what_is_missing_is_pulled_in_by_a_thread(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    cache = PageCache(nowait=False)
    log = make_log(tmp_path, at=host(cache))
    for _ in range(20):
        append(log, batch(1, size=100_000))
    cache._recent.clear()  # as if it had all been written long ago
    reading: list[str] = []

    def read(blocking: bool) -> int:
        reading.append(threading.current_thread().name)
        found = log.read(3, 1 << 20, max_offset=20, blocking=blocking).records
        assert isinstance(found, FileSlice)
        found.release()
        return len(found)

    with pytest.raises(WouldBlock) as cold:
        read(False)
    assert await read_cold(threads, cold.value, read) > 900_000
    assert set(reading) == {threading.current_thread().name}  # the log itself is only touched on the loop
    log.close()


async def test_pages_that_never_stay_are_waited_for(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    cache = PageCache(nowait=False)
    log = make_log(tmp_path, at=host(cache))
    append(log)
    rounds = 0

    def read(blocking: bool) -> str:
        nonlocal rounds
        if blocking:
            return "from the disk"
        rounds += 1
        raise WouldBlock(log.active.file, 0, 10)

    assert await read_cold(threads, WouldBlock(log.active.file, 0, 10), read) == "from the disk"
    assert rounds == MOST_ROUNDS
    log.close()
