"""What Apache Kafka says of its settings: extracted from both releases, and recorded answers of DescribeConfigs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent.parent / "data" / "config"


def facts(which: str) -> dict[str, dict[str, Any]]:
    """`broker-3.9.2` and so on → {name: row}."""
    rows = json.loads(gzip.decompress((_DATA / "facts.json.gz").read_bytes()))[which]
    return {row["name"]: row for row in rows}


def described(which: str) -> list[dict[str, Any]]:
    """`broker` or `topic` → the configs of one answer of Kafka 3.9.2, in its order."""
    found: list[dict[str, Any]] = json.loads(gzip.decompress((_DATA / "described-3.9.2.json.gz").read_bytes()))[which]
    return found
