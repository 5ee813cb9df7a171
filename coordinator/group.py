"""What every kind of group has in common, as offsets, listing and the runtime see it."""

from __future__ import annotations

from typing import Protocol

from pybroker.coordinator.effects import Effects, TimerKey
from pybroker.coordinator.records import Record
from pybroker.protocol.errors import Errors

CLASSIC, CONSUMER = "classic", "consumer"  # types of groups, as ListGroups tells them


class Group(Protocol):
    """A group of any protocol. Methods that return Errors say NONE where nothing speaks against it."""

    group_id: str
    type: str
    protocol_type: str | None

    @property
    def state_name(self) -> str:
        """As tools show it: Empty, Stable, ..."""

    @property
    def is_empty(self) -> bool:
        """No member, so that the group may be deleted."""

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, transactional: bool) -> Errors:
        """May this member commit offsets now? `generation` is the member epoch in KIP-848."""

    def committed_by(self, member_id: str, effects: Effects) -> None:
        """A member has committed: it is alive."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> Errors:
        """May offsets be fetched (OffsetFetch 9+ names a member)?"""

    def check_delete_offsets(self) -> Errors:
        """May single offsets be deleted while the group is as it is?"""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume the topic; True where that is not known."""

    def offsets_expire_from(self, committed_at: int) -> int | None:
        """From when on (wall clock, ms) an offset's retention runs; None while it does not. KIP-211."""

    def tombstones(self) -> list[Record]:
        """The records that make the group itself forgotten."""

    def removed(self, effects: Effects) -> None:
        """The group is deleted: nothing of it may be used any more."""

    def loaded(self, effects: Effects) -> None:
        """The partition has been loaded: members have to report from now on."""

    def unloaded(self, effects: Effects) -> None:
        """Another broker coordinates the group: answer everyone who waits."""

    def timer(self, key: TimerKey, effects: Effects) -> None:
        """A timer that the group has set is due."""
