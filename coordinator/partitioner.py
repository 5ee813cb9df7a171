"""Which partition of an internal topic keeps a group or a transactional id: Java's String.hashCode, as Kafka does."""

from __future__ import annotations

from functools import lru_cache


def java_hash(text: str) -> int:
    """String.hashCode: over UTF-16 units, a signed 32-bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(encoded), 2):
            value = (31 * value + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=16_384)
def partition_for(key: str, partitions: int) -> int:
    """The key's partition of `partitions` (Utils.abs: the sign bit is cut off)."""
    return (java_hash(key) & 0x7FFFFFFF) % partitions
