"""Names of the wire's primitive types, so that a declaration reads like the schema it stands for.

To a type checker they are the Python types; the schema compiler reads the names.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

int8: TypeAlias = int
int16: TypeAlias = int
int32: TypeAlias = int
int64: TypeAlias = int
uint16: TypeAlias = int
uint32: TypeAlias = int
float64: TypeAlias = float
Uuid: TypeAlias = bytes  # 16 raw bytes
# None, a bytes-like view, or any object with __len__ that the network layer can send (a file slice).
Records: TypeAlias = Any


class TopicPartition(NamedTuple):
    """One partition by name, as Kafka's TopicPartition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
