"""What the machine decides when no setting does: where data lives, and how much memory requests may hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_LEAST_REQUEST_MEMORY = 128 * 1024 * 1024


def default_data_dir(environ: Mapping[str, str] | None = None) -> Path:
    """$XDG_DATA_HOME/pybroker, or ~/.local/share/pybroker. Never the working directory and never /tmp.

    A relative XDG_DATA_HOME is ignored, as the XDG base directory specification asks.
    """
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "share")
    return Path(base, "pybroker")


def request_memory(environ_root: str = "/sys/fs/cgroup") -> int:
    """Bytes that unanswered requests may hold together: an eighth of the memory this process can have.

    Kafka's default is no limit at all. Never below what one request of socket.request.max.bytes' default needs.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = 0
    try:
        with open(os.path.join(environ_root, "memory.max"), encoding="ascii") as file:
            memory = min(memory, int(file.read()))
    except (OSError, ValueError):
        pass  # no limit ("max"), or no such file on this system: physical memory counts
    return max(memory // 8, _LEAST_REQUEST_MEMORY)
