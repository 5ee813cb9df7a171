"""The test program in Go (tests/clients/go), built once a session; where that cannot be, need_go() skips and says why.

Go keeps the modules and what it has compiled in its own caches.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.broker import ROOT

SOURCE = ROOT / "tests" / "clients" / "go"
BUILD_SECONDS = 300


@cache
def built(folder: Path) -> Path:
    """The program in this folder. RuntimeError says what stands in the way."""
    if shutil.which("go") is None:
        raise RuntimeError("Go is missing")
    program = folder / "groupmember"
    command = ["go", "build", "-o", str(program), "."]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if done.returncode:
        raise RuntimeError(f"the program in Go could not be built: {done.stderr[-500:]}")
    return program


def need_go(folder: Path) -> Path:
    """The program, built in this folder; skips the test where there is no Go, or its modules cannot be fetched."""
    try:
        return built(folder)
    except RuntimeError as error:
        pytest.skip(str(error))
