"""File operations that fail."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = [
    *((os, name) for name in ("open", "ftruncate", "truncate", "pwrite", "rename", "replace", "unlink", "mkdir")),
    (builtins, "open"),
]


class Faults:
    """One of the file operations below `folder` fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._folder = str(folder)
        self.seen: list[str] = []

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        self.seen.clear()
        with self._monkeypatch.context() as patches:
            for owner, name in OPERATIONS:
                patches.setattr(owner, name, self._failing(getattr(owner, name), name, number))
            yield

    def _failing(self, real: Callable[..., Any], name: str, at: int) -> Callable[..., Any]:
        def call(first: Any, *args: Any, **how: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)
            if path.startswith(self._folder) or how.get("dir_fd") is not None:
                self.seen.append(f"{name} {path}")
                if len(self.seen) - 1 == at:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return real(first, *args, **how)

        return call
