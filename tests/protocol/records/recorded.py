"""Segments and message sets written by Apache Kafka 3.9.2, with what was sent (tests/data/records)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from pybroker.protocol.records import legacy, record
from pybroker.protocol.records.header import MAGIC_V2, iter_headers
from pybroker.protocol.records.record import Record

_FILE = Path(__file__).parents[2] / "data" / "records" / "recorded.json.gz"


@cache
def recorded() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress(_FILE.read_bytes()))
    return data


def decode_log(data: bytes) -> list[Record]:
    """All data records of a segment, of any magic."""
    found: list[Record] = []
    for at, header in iter_headers(data):
        batch = data[at : at + header.size]
        if header.magic < MAGIC_V2:
            found += legacy.iter_records(batch, check_inner=True)
        elif not header.is_control:
            found += record.iter_records(batch)
    return found


def as_bytes(value: Any) -> bytes | None:
    """A key or value of a case: text, {"hex": ...} or null."""
    if value is None:
        return None
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else str(value).encode()
