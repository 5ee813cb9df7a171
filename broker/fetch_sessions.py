"""Incremental fetch sessions (KIP-227): a client names its partitions once and afterwards only what changes.

A session keeps one Ask per partition. Asks that have something new are in `ready`, in the order in which they are to be
served; the others are not even looked at. Kafka's FetchSessionCache and FetchContext.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import FetchRequest, PartitionData
from pybroker.protocol.uuids import ZERO_UUID
from pybroker.replication.fetch import Ask, WaitingFetch

FINAL_EPOCH = -1  # "no session, and close the one I name"
INITIAL_EPOCH = 0  # "a full fetch; open a session if you can"
MAX_INT = 2**31 - 1
EVICTION_MS = 120_000  # a session used more recently than this is not evicted for a new one

AskKey = tuple[str, bytes, int]
NameOf = Callable[[bytes], str | None]


def asks_of(request: FetchRequest, by_id: bool, name_of: NameOf) -> list[Ask]:
    """The partitions of a request; topics by id (Fetch 13+) get their names here, "" where unknown."""
    asks = []
    for topic in request.topics:
        name = (name_of(topic.topic_id) or "") if by_id else topic.topic
        topic_id = topic.topic_id if by_id else ZERO_UUID
        asks += [Ask(name, topic_id, wanted) for wanted in topic.partitions]
    return asks


class SessionlessFetch:
    """A Fetch that stands alone: all its partitions are read and answered."""

    __slots__ = ("asks", "waiting")
    session_id = 0

    def __init__(self, asks: list[Ask]) -> None:
        self.asks = asks
        self.waiting: WaitingFetch | None = None

    def to_read(self) -> Iterable[Ask]:
        return self.asks

    def ask_ready(self, ask: Ask) -> None:
        if self.waiting is not None:
            self.waiting.progress(ask)

    def answer(self, answers: list[tuple[Ask, PartitionData]]) -> list[tuple[Ask, PartitionData]]:
        return answers

    def done(self) -> None:
        """The request is answered, or nobody waits for it any more."""
        self.waiting = None
        for ask in self.asks:
            ask.unwatch()


class FetchSession:
    """One client's session: its asks, the epoch of its next request, and which asks are worth reading."""

    __slots__ = ("asks", "by_id", "full", "last_used_ms", "next_epoch", "privileged", "ready", "session_id", "waiting")

    def __init__(self, session_id: int, asks: list[Ask], by_id: bool, privileged: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.privileged = privileged  # a follower's: consumers' sessions never push it out
        self.asks: dict[AskKey, Ask] = {_key(ask): ask for ask in asks}
        self.ready: dict[Ask, None] = dict.fromkeys(self.asks.values())
        self.next_epoch = INITIAL_EPOCH + 1
        self.full = True  # the first answer names every partition
        self.last_used_ms = now_ms
        self.waiting: WaitingFetch | None = None

    def to_read(self) -> Iterable[Ask]:
        return tuple(self.ready)

    def ask_ready(self, ask: Ask) -> None:
        self.ready[ask] = None
        if self.waiting is not None:
            self.waiting.progress(ask)

    def update(self, request: FetchRequest, name_of: NameOf) -> None:
        """Take over the partitions that an incremental request adds, changes and forgets."""
        by_id = self.by_id
        for topic in request.topics:
            name = (name_of(topic.topic_id) or "") if by_id else topic.topic
            topic_id = topic.topic_id if by_id else ZERO_UUID
            for wanted in topic.partitions:
                key = ("" if by_id else name, topic_id, wanted.partition)
                known = self.asks.get(key)
                if known is None:
                    known = self.asks[key] = Ask(name, topic_id, wanted)
                else:
                    known.take(name, wanted)
                self.ready[known] = None
        for forgotten in request.forgotten_topics_data:
            name = "" if by_id else forgotten.topic
            topic_id = forgotten.topic_id if by_id else ZERO_UUID
            for index in forgotten.partitions:
                gone = self.asks.pop((name, topic_id, index), None)
                if gone is not None:
                    gone.unwatch()
                    self.ready.pop(gone, None)
        if by_id:
            for ask in self.ready:
                ask.topic = ask.topic or name_of(ask.topic_id) or ""

    def answer(self, answers: list[tuple[Ask, PartitionData]]) -> list[tuple[Ask, PartitionData]]:
        """What of it is sent: all of a first answer, afterwards what has records, an error or news of its watermarks.

        Partitions with records go to the end of the line, so that none starves behind another.
        """
        chosen = []
        for ask, data in answers:
            busy = (
                bool(data.records)
                or data.error_code != 0
                or data.diverging_epoch.epoch >= 0
                or data.preferred_read_replica >= 0
            )
            moved = data.high_watermark != ask.sent_watermark or data.log_start_offset != ask.sent_log_start
            if busy or moved or self.full:
                ask.sent_watermark, ask.sent_log_start = data.high_watermark, data.log_start_offset
                chosen.append((ask, data))
            if busy or ask.at_end:
                self.ready.pop(ask, None)
            if busy:
                self.ready[ask] = None
        self.full = False
        return chosen

    def done(self) -> None:
        """The request is answered, or nobody waits for it any more; the asks go on watching."""
        self.waiting = None

    def close(self) -> None:
        for ask in self.asks.values():
            ask.unwatch()
        self.asks.clear()
        self.ready.clear()


def _key(ask: Ask) -> AskKey:
    """By name for Fetch 7-12; by id from 13 on, whatever the name is now."""
    return (ask.topic, ZERO_UUID, ask.index) if ask.topic_id == ZERO_UUID else ("", ask.topic_id, ask.index)


class FetchSessionCache:
    """At most `slots` sessions (max.incremental.fetch.session.cache.slots); `now_ms` is a monotonic clock."""

    def __init__(self, slots: int, now_ms: Callable[[], int]) -> None:
        self._slots = slots
        self._now_ms = now_ms
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """How many partitions all sessions hold."""
        return sum(len(session.asks) for session in self._sessions.values())

    def open(self, request: FetchRequest, version: int, name_of: NameOf) -> SessionlessFetch | FetchSession:
        """The context of a Fetch. Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH and
        FETCH_SESSION_TOPIC_ID_ERROR (a session by names asked by ids, or the reverse)."""
        epoch, by_id = request.session_epoch, version >= 13
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._close(request.session_id)
            asks = asks_of(request, by_id, name_of)
            if epoch == FINAL_EPOCH or not asks:
                return SessionlessFetch(asks)
            follower = request.replica_id >= 0 or request.replica_state.replica_id >= 0
            return self._create(asks, by_id, follower) or SessionlessFetch(asks)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(Errors.FETCH_SESSION_ID_NOT_FOUND)
        if session.next_epoch != epoch or session.waiting is not None:
            raise KafkaError(Errors.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(Errors.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(request, name_of)
        if not session.asks:
            self._close(session.session_id)
            return SessionlessFetch([])
        session.next_epoch = epoch + 1 if epoch < MAX_INT else INITIAL_EPOCH + 1
        self._touch(session)
        return session

    def _create(self, asks: list[Ask], by_id: bool, privileged: bool) -> FetchSession | None:
        now = self._now_ms()
        if len(self._sessions) >= self._slots and not self._evict(privileged, now):
            return None
        session_id = random.randint(1, MAX_INT)
        while session_id in self._sessions:
            session_id = random.randint(1, MAX_INT)
        session = self._sessions[session_id] = FetchSession(session_id, asks, by_id, privileged, now)
        return session

    def _evict(self, privileged: bool, now_ms: int) -> bool:
        """Make room: the least recently used session goes if it is stale, or a consumer's where a follower asks."""
        for session in self._sessions.values():
            if session.waiting is None and (
                now_ms - session.last_used_ms > EVICTION_MS or (privileged and not session.privileged)
            ):
                self._close(session.session_id)
                return True
        return False

    def _touch(self, session: FetchSession) -> None:
        session.last_used_ms = self._now_ms()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
