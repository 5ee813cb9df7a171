"""Committed offsets of the groups of one partition: what is committed, what is being written, what transactions hold.

An offset counts once its record is committed, and among several of one partition the one that is last in the log. One
committed in a transaction waits for the transaction's marker (KIP-98); until then a fetch that requires stable offsets
is told so (KIP-447).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from pybroker.coordinator.group import Group
from pybroker.coordinator.records import Record, offset_key
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.offset_commit import OffsetCommitValue

NO_EXPIRY = -1

# How a client hears of a commit that could not be written, by what the log answered.
WRITE_FAILED = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.REQUEST_TIMED_OUT: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.MESSAGE_TOO_LARGE: Errors.INVALID_COMMIT_OFFSET_SIZE,
    Errors.RECORD_LIST_TOO_LARGE: Errors.INVALID_COMMIT_OFFSET_SIZE,
}

Place = tuple[str, int]  # topic and partition


class CommittedOffset(NamedTuple):
    """Times in ms since the epoch. `expires_at` is NO_EXPIRY unless the commit said how long it is kept (version 2-4).
    leader_epoch is -1 where the client did not know it."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at: int
    expires_at: int = NO_EXPIRY

    def record(self, group_id: str, place: Place) -> Record:
        return Record(
            offset_key(group_id, *place),
            OffsetCommitValue(
                offset=self.offset, leader_epoch=self.leader_epoch, metadata=self.metadata,
                commit_timestamp=self.committed_at, expire_timestamp=self.expires_at,
            ),
        )  # fmt: skip

    @classmethod
    def of(cls, value: OffsetCommitValue) -> CommittedOffset:
        return cls(
            value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp
        )


class GroupOffsets:
    """One group's offsets."""

    __slots__ = ("committed", "transactional", "writing")

    def __init__(self) -> None:
        self.committed: dict[Place, CommittedOffset] = {}
        self.writing: Counter[Place] = Counter()  # commits that are appended and not yet committed
        self.transactional: dict[int, dict[Place, CommittedOffset | None]] = {}  # by producer id

    def __bool__(self) -> bool:
        """Whether there is any, decided or not."""
        return bool(self.committed or self.transactional or self.writing)

    def set(self, place: Place, offset: CommittedOffset, producer_id: int | None = None) -> None:
        """A record is committed: of a transaction, where it has a producer id."""
        if producer_id is not None:
            self.transactional.setdefault(producer_id, {})[place] = offset
            return
        self.committed[place] = offset
        for held in self.transactional.values():
            if place in held:
                held[place] = None  # it lies before this one in the log, so it will not count

    def remove(self, place: Place) -> None:
        self.committed.pop(place, None)

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """What the producer's transaction holds counts now, or never did."""
        held = self.transactional.pop(producer_id, None)
        if held is not None and commit:
            self.committed.update((place, offset) for place, offset in held.items() if offset is not None)

    def is_unstable(self, place: Place) -> bool:
        """An open transaction may still change it."""
        return any(place in held for held in self.transactional.values())

    def begin_write(self, places: Iterable[Place]) -> None:
        self.writing.update(places)

    def end_write(self, places: Iterable[Place]) -> None:
        for place in places:
            self.writing[place] -= 1
            if self.writing[place] <= 0:
                del self.writing[place]

    def expired(self, now_ms: int, retention_ms: int, group: Group) -> list[Place]:
        """Offsets whose time is over (KIP-211; those with an expiry of their own by that)."""
        found = []
        for place, offset in self.committed.items():
            if place in self.writing or self.is_unstable(place) or group.is_subscribed_to(place[0]):
                continue
            start = group.offsets_expire_from(offset.committed_at)
            if start is None:
                continue
            if now_ms >= offset.expires_at if offset.expires_at != NO_EXPIRY else now_ms - start >= retention_ms:
                found.append(place)
        return found
