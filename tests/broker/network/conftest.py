from __future__ import annotations

from asyncio import AbstractEventLoopPolicy

import pytest
import uvloop


@pytest.fixture
def event_loop_policy() -> AbstractEventLoopPolicy:
    """The broker's own kind of loop."""
    policy: AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy
