"""A follower's Fetch requests: a session with one leader (KIP-227), named once and then only what changes.

Kafka's FetchSessionHandler, and what ReplicaFetcherThread puts into its requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from pybroker.protocol.uuids import ZERO_UUID

BY_ID_FROM = 13
BY_NAME = 12
MAX_INT = 2**31 - 1
#: Top-level errors after which the same partitions are asked for in a new session, at once.
SESSION_ERRORS = frozenset({
    Errors.FETCH_SESSION_ID_NOT_FOUND, Errors.INVALID_FETCH_SESSION_EPOCH, Errors.FETCH_SESSION_TOPIC_ID_ERROR,
    Errors.INCONSISTENT_TOPIC_ID,
})  # fmt: skip

Key = tuple[str, bytes, int]  # topic, its id, partition
Wanted = tuple[int, int, int, int]  # leader epoch, fetch offset, last fetched epoch, log start offset


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """By Kafka's names, of replica.fetch.*; times in ms. The versions are those of Fetch, of ListOffsets and of
    OffsetForLeaderEpoch, by inter.broker.protocol.version."""

    broker_id: int
    version: int = 17
    offsets_version: int = 9
    epochs_version: int = 3  # asked only where Fetch does not tell
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1 << 20  # of a partition
    response_max_bytes: int = 10 << 20
    backoff_ms: int = 1000
    fetchers: int = 1  # num.replica.fetchers


class FetchRequests:
    """Makes the requests of one session, and takes note of what was answered. A request costs what has changed since
    the one before, however many partitions the session holds."""

    def __init__(self, settings: FetchSettings, broker_epoch: int = -1) -> None:
        self.broker_epoch = broker_epoch
        self.version = settings.version  # of the request that was built last
        self._settings = settings
        self._session_id = 0
        self._epoch = 0  # 0: the next request is a full one
        self._wanted: dict[Key, Wanted] = {}
        self._without_id: set[Key] = set()  # of those wanted
        self._told: set[Key] = set()  # the leader's session holds these
        self._news: dict[Key, None] = {}  # to be named in the next request
        self._gone: set[Key] = set()  # to be forgotten by it

    @property
    def in_session(self) -> bool:
        return self._session_id != 0

    @property
    def wants_any(self) -> bool:
        return bool(self._wanted)

    def want(self, key: Key, wanted: Wanted) -> None:
        """Ask for this from the next request on."""
        if self._wanted.get(key) != wanted:
            self._wanted[key] = wanted
            self._news[key] = None
            self._gone.discard(key)
            if key[1] == ZERO_UUID:
                self._without_id.add(key)

    def drop(self, key: Key) -> None:
        """Ask for it no more."""
        if self._wanted.pop(key, None) is not None:
            self._news.pop(key, None)
            self._without_id.discard(key)
            if key in self._told:
                self._gone.add(key)

    def build(self) -> FetchRequest:
        """The request that asks for what is wanted; `version` is the one to send it in: 12, which knows topics by name,
        as long as there is one without an id."""
        version = self._settings.version
        if version >= BY_ID_FROM and self._without_id:
            version = BY_NAME
        if (version >= BY_ID_FROM) != (self.version >= BY_ID_FROM):
            self.reset()
        self.version = version
        settings = self._settings
        request = FetchRequest(
            replica_id=settings.broker_id if version < 15 else -1,
            replica_state=ReplicaState(
                replica_id=settings.broker_id if version >= 15 else -1,
                replica_epoch=self.broker_epoch if version >= 15 else -1,
            ),
            max_wait_ms=settings.max_wait_ms if self._wanted else 0,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=self._topics([(key, self._wanted[key]) for key in self._news]),
        )
        self._told.update(self._news)
        self._news.clear()
        if self._gone:
            request.forgotten_topics_data = [
                ForgottenTopic(topic=topic, topic_id=topic_id, partitions=[index for _, _, index in keys])
                for (topic, topic_id), keys in groupby(sorted(self._gone), lambda key: key[:2])
            ]
            self._told -= self._gone
            self._gone.clear()
        return request

    def _topics(self, news: list[tuple[Key, Wanted]]) -> list[FetchTopic]:
        topics: list[FetchTopic] = []
        for (name, topic_id, index), (leader_epoch, offset, last_epoch, log_start) in news:
            if not topics or topics[-1].topic != name or topics[-1].topic_id != topic_id:
                topics.append(FetchTopic(topic=name, topic_id=topic_id))
            topics[-1].partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=last_epoch,
                    log_start_offset=log_start,
                    partition_max_bytes=self._settings.max_bytes,
                )
            )
        return topics

    def answered(self, response: FetchResponse) -> None:
        """The session goes on, or ends where the leader says so (or has no room for one)."""
        if response.error_code or response.session_id == 0:
            self.reset()
            return
        self._session_id = response.session_id
        self._epoch = self._epoch + 1 if self._epoch < MAX_INT else 1

    def reset(self) -> None:
        """The next request names all that is wanted and asks for a new session."""
        self._session_id = self._epoch = 0
        self._told.clear()
        self._gone.clear()
        self._news = dict.fromkeys(self._wanted)
