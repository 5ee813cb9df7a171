"""A disk under a folder that is slower than the others: os.pwrite to its files waits.

In a test it is an object that holds or fails writes; `python slow_disk.py FOLDER MS broker-arguments...` starts a
broker over such a disk, with writes below FOLDER taking MS milliseconds more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

Write = Callable[[int, bytes, int], int]


class SlowDisk:
    """Writes below `folder` wait while it is held; the next one fails with `error` if there is one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.error: OSError | None = None
        self.begun = 0  # writes below the folder, so far
        self._folder = folder
        self._quick = threading.Event()
        self._quick.set()
        self._pwrite: Write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._write)

    def _write(self, fd: int, data: bytes, position: int) -> int:
        if not _is_below(fd, self._folder):
            return self._pwrite(fd, data, position)
        self.begun += 1
        assert self._quick.wait(30), "nobody let go of the disk"
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self._pwrite(fd, data, position)

    def hold(self) -> None:
        self._quick.clear()

    def let_go(self) -> None:
        self._quick.set()


def over(command: list[str], folder: Path, write_ms: int) -> list[str]:
    """The command of a broker, over a disk where writes below `folder` take so long."""
    python, _, _, *arguments = command  # python -m pybroker ...
    return [python, __file__, str(folder), str(write_ms), *arguments]


def _is_below(fd: int, folder: Path) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/")


def main() -> None:
    from pybroker.broker.cli import main as broker

    folder, seconds, sys.argv[1:] = Path(sys.argv[1]), int(sys.argv[2]) / 1000, sys.argv[3:]
    pwrite: Write = os.pwrite

    def write(fd: int, data: bytes, position: int) -> int:
        if _is_below(fd, folder):
            time.sleep(seconds)
        return pwrite(fd, data, position)

    os.pwrite = write
    sys.exit(broker())


if __name__ == "__main__":
    main()
