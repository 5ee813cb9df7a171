"""Runs tests/scripts/coordinator/*.txt. With PYBROKER_WRITE_SCRIPTS=1 the scripts are rewritten as the coordinator
decides now, to be read in the diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.coordinator.script import Script

SCRIPTS = sorted((Path(__file__).parent.parent / "scripts" / "coordinator").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    text = path.read_text()
    done = Script().run(text)
    if os.environ.get("PYBROKER_WRITE_SCRIPTS"):
        path.write_text(done)
    assert done == text
