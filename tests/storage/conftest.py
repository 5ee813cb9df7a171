"""What all tests of storage share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pybroker.storage import append_queue


@pytest.fixture(autouse=True, scope="session")
def no_slow_disks() -> Iterator[None]:
    """However busy the machine's disk is, appends are done when they return; test_append_queue has it otherwise."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(append_queue, "SLOW_WRITE_SECONDS", float("inf"))
        yield
