"""Reads that are not in the page cache: a thread brings them there, then the loop reads again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from pybroker.storage.files import WouldBlock

T = TypeVar("T")

# Where memory is so short that pages leave before they are used, the loop has to wait for the disk in the end.
MOST_ROUNDS = 64


async def read_cold(threads: Executor, cold: WouldBlock, read: Callable[[bool], T]) -> T:
    """What `read(blocking)` returns once nothing is missing any more; `cold` says what was missing first."""
    loop = asyncio.get_running_loop()
    for _ in range(MOST_ROUNDS):
        await loop.run_in_executor(threads, cold.pull_in)
        try:
            return read(False)
        except WouldBlock as still_cold:
            cold = still_cold
    return read(True)
