"""Connections that say nothing (connections.max.idle.ms is 8000)."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.probe import Case, ProbeClient, Step
from tests.support.wire import Closed


def silent(text: str, first: bool) -> Callable[[ProbeClient], str]:
    """Waits for the close; text holds {seconds}."""

    def run(client: ProbeClient) -> str:
        client.sock.settimeout(30)
        if first:
            client.call("ApiVersions", 0)
        began = time.monotonic()
        try:
            client.read(1)
        except Closed:
            return text.format(seconds=f"{time.monotonic() - began:.1f} s")
        return "data?"

    return run


SPOKE = "closed by the broker after {seconds} idle (connections.max.idle.ms=8000)"

CASES: list[Case | Step] = [
    Case("idle connection", None, silent(SPOKE, True)),
    Case("idle connection that never sent anything", None, silent("closed after {seconds}", False)),
]
