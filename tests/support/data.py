"""Reads the recorded data under tests/data (see its README.md)."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data"
RELEASES = ("3.9.2", "4.3.1")


def _lines(path: Path) -> list[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@cache
def frames(release: str) -> list[dict[str, Any]]:
    """Recorded frames of a release: api, version, client, note, request and response as bytes (or None: no answer)."""
    rows = _lines(DATA / "wire" / f"kafka-{release}.jsonl.xz")
    for row in rows:
        row["request"] = bytes.fromhex(row["request"])
        row["response"] = None if row["response"] is None else bytes.fromhex(row["response"])
    return rows


@cache
def schemas(release: str) -> dict[str, dict[str, Any]]:
    """Message schemas of a release by name; retired ones (no fields) are left out."""
    return {row["name"]: row for row in _lines(DATA / "schemas" / f"kafka-{release}.jsonl.xz") if "fields" in row}


@cache
def probe_answers(release: str) -> list[dict[str, Any]]:
    """What the release answered to each probe case, in the order they were sent."""
    with lzma.open(DATA / "probe" / f"kafka-{release}.json.xz", "rt", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = json.load(file)
    return rows
