"""The topics of the cluster, as the broker hands them in. Apart, since the broker needs it at its start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Topic(NamedTuple):
    topic_id: bytes
    partitions: int


class TopicCatalog(Protocol):
    """The topics of the cluster, as the broker hands them in."""

    @property
    def version(self) -> int:
        """Grows with every topic that comes, goes or changes."""

    def topic(self, name: str) -> Topic | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def names(self) -> Iterable[str]: ...
