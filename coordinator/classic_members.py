"""The members of a classic group: who leads, who is static, which assignment protocols all of them know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pybroker.coordinator.effects import Reply

NOT_ARMED = 1 << 62
Protocols = Sequence[tuple[str, bytes]]


class Member:
    """One member. Times in ms; `deadline` is of the monotonic clock.

    `joining` and `syncing` are the requests that wait for the group. `is_new`: has not had an answer to its first join,
    so that it can't send heartbeats. `armed_at`: when the session timer will look, which may be before the deadline.
    """

    __slots__ = (
        "armed_at", "assignment", "client_host", "client_id", "deadline", "instance_id", "is_new", "joining",
        "member_id", "protocols", "rebalance_timeout_ms", "session_timeout_ms", "syncing",
    )  # fmt: skip

    def __init__(
        self, member_id: str, instance_id: str | None, client_id: str, client_host: str, session_timeout_ms: int,
        rebalance_timeout_ms: int, protocols: Protocols, assignment: bytes = b"",
    ) -> None:  # fmt: skip
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = tuple(protocols)
        self.assignment = assignment
        self.joining: Reply | None = None
        self.syncing: Reply | None = None
        self.is_new = False
        self.deadline = 0
        self.armed_at = NOT_ARMED

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said with that protocol, usually its subscription."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def matches(self, protocols: Protocols) -> bool:
        return self.protocols == tuple(protocols)


class Members:
    """Members by id, in the order in which they came."""

    __slots__ = ("_by_id", "_supported", "leader_id", "pending", "static")

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._supported: Counter[str] = Counter()  # protocol → how many members know it
        self.static: dict[str, str] = {}  # group.instance.id → member id
        self.pending: set[str] = set()  # ids that were given out (MEMBER_ID_REQUIRED) and have not joined yet
        self.leader_id: str | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def add(self, member: Member) -> None:
        self._by_id[member.member_id] = member
        self._supported.update({name for name, _ in member.protocols})
        self.pending.discard(member.member_id)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        """The leadership goes to the member that is here longest."""
        del self._by_id[member.member_id]
        self._forget_protocols(member)
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._by_id), None)

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._forget_protocols(member)
        member.protocols = tuple(protocols)
        self._supported.update({name for name, _ in member.protocols})

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back under a new id; it stays what it was, the leader too."""
        del self._by_id[member.member_id]
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        member.member_id = member_id
        self._by_id[member_id] = member
        assert member.instance_id is not None
        self.static[member.instance_id] = member_id

    def _forget_protocols(self, member: Member) -> None:
        for name in {name for name, _ in member.protocols}:
            self._supported[name] -= 1
            if not self._supported[name]:
                del self._supported[name]

    def know_one_of(self, names: Iterable[str]) -> bool:
        """Whether all members know one and the same of these protocols."""
        count = len(self._by_id)
        return any(self._supported[name] == count for name in names)

    def select_protocol(self) -> str:
        """By votes: each member's first among those that all know; the first to get the most."""
        count = len(self._by_id)
        votes: Counter[str] = Counter()
        for member in self:
            choice = next((name for name, _ in member.protocols if self._supported[name] == count), None)
            if choice is not None:
                votes[choice] += 1
        return votes.most_common(1)[0][0] if votes else ""

    def all_joined(self) -> bool:
        """Nobody is missing in the join phase, neither a member nor one who was given an id."""
        return not self.pending and all(member.joining is not None for member in self)

    def joined(self) -> int:
        return sum(member.joining is not None for member in self)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one of those who joined; False where nobody has."""
        leader = self._by_id.get(self.leader_id) if self.leader_id is not None else None
        if leader is None:
            return False
        if leader.joining is None:
            first = next((member for member in self if member.joining is not None), None)
            if first is None:
                return False
            self.leader_id = first.member_id
        return True

    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self), default=0)
