"""Unpacks recorded log directories (tests/data/disk)."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

DISK = Path(__file__).resolve().parent.parent / "data" / "disk"


def cases(prefix: str = "") -> list[str]:
    """The names of the cases that begin with `prefix`."""
    return sorted(path.name.removesuffix(".tar.xz") for path in DISK.glob(f"{prefix}*.tar.xz"))


def unpack(case: str, to: Path) -> tuple[dict[str, Any], Path]:
    """(case.json, log directory), a fresh copy of a case under `to`."""
    with tarfile.open(DISK / f"{case}.tar.xz") as archive:
        archive.extractall(to)
    facts: dict[str, Any] = json.loads((to / case / "case.json").read_text("utf-8"))
    return facts, to / case / "data"


def describe(path: Path) -> dict[str, Any]:
    """A file as case.json has it: size and the first 16 hex digits of its SHA-256."""
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()[:16]}
