"""Fetch sessions (KIP-227): what is named once, what is answered again, and when a session ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker.broker.fetch_sessions import EVICTION_MS, FetchSession, FetchSessionCache, SessionlessFetch
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from pybroker.replication.fetch import PartitionReader
from tests.replication.test_fetch import MANY, Bench, parameters
from tests.replication.test_partition import append, state

ID = b"\7" * 16


class Client:
    """Sends Fetch requests to a cache over a bench of partitions and says which partitions were answered."""

    def __init__(self, directory: Path, partitions: int = 3, slots: int = 10) -> None:
        self.bench = Bench(directory, partitions)
        self.clock = ManualClock()
        self.cache = FetchSessionCache(slots, self.clock.monotonic_ms)
        self.names = {ID: "t"}
        self.reads = 0

        def find(topic: str, index: int) -> Any:
            self.reads += 1
            return self.bench.find(topic, index)

        self.reader = PartitionReader(find, self.clock.monotonic_ms)

    def fetch(
        self, session: int, epoch: int, asks: dict[int, int] | None = None, forget: tuple[int, ...] = (),
        version: int = 12, replica_id: int = -1,
        room: int = MANY, before_answer: Callable[[], object] = lambda: None,
    ) -> tuple[int, list[int]]:  # fmt: skip
        wanted = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=MANY)
            for index, offset in (asks or {}).items()
        ]
        request = FetchRequest(
            session_id=session,
            session_epoch=epoch,
            replica_id=replica_id,
            topics=[FetchTopic(topic="t", topic_id=ID, partitions=wanted)] if wanted else [],
            forgotten_topics_data=[ForgottenTopic(topic="t", topic_id=ID, partitions=list(forget))] if forget else [],
        )
        fetching = self.cache.open(request, version, self.names.get)
        self.reads = 0
        found = self.reader.read(fetching.to_read(), parameters(max_bytes=room), fetching)
        before_answer()
        chosen = fetching.answer(found.answers)
        fetching.done()
        return fetching.session_id, [ask.index for ask, _ in chosen]


def refused(client: Client, *args: Any, **how: Any) -> Errors:
    with pytest.raises(KafkaError) as error:
        client.fetch(*args, **how)
    return error.value.code


def test_the_first_answer_names_all_and_later_ones_only_news(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, answered = client.fetch(0, 0, {0: 0, 1: 0, 2: 0})
    assert session > 0
    assert answered == [0, 1, 2]
    append(client.bench.partitions[1])
    assert client.fetch(session, 1) == (session, [1])
    assert client.fetch(session, 2) == (session, [1])  # not fetched past it: it comes again
    assert client.fetch(session, 3, {1: 1}) == (session, [])


def test_a_partition_where_nothing_happened_is_not_even_read(tmp_path: Path) -> None:
    client = Client(tmp_path, partitions=20)
    session, _ = client.fetch(0, 0, dict.fromkeys(range(20), 0))
    client.fetch(session, 1)
    assert client.reads == 0
    append(client.bench.partitions[7])
    assert client.fetch(session, 2)[1] == [7]
    assert client.reads == 1


def test_partitions_with_data_take_turns(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for led in client.bench.partitions:
        append(led)
    session, _ = client.fetch(0, 0, {0: 0, 1: 0, 2: 0})
    turns = [client.fetch(session, epoch, room=1)[1] for epoch in range(1, 7)]
    assert turns == [[0], [1], [2], [0], [1], [2]]


def test_records_that_come_between_read_and_answer_are_answered_next(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, _ = client.fetch(0, 0, {0: 0, 1: 0, 2: 0}, before_answer=lambda: append(client.bench.partitions[1]))
    assert client.fetch(session, 1) == (session, [1])


def test_forgetting_and_adding(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, _ = client.fetch(0, 0, {0: 0, 1: 0})
    assert client.fetch(session, 1, {2: 0}, forget=(0,)) == (session, [2])
    append(client.bench.partitions[0])
    append(client.bench.partitions[1])
    assert client.fetch(session, 2)[1] == [1]
    assert not client.bench.partitions[0].watchers


def test_an_unknown_partition_is_answered_until_it_is_there(tmp_path: Path) -> None:
    client = Client(tmp_path, partitions=1)
    session, _ = client.fetch(0, 0, {0: 0, 9: 0})
    assert client.fetch(session, 1)[1] == [9]
    assert client.fetch(session, 2)[1] == [9]


def test_a_lost_leader_is_news(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, _ = client.fetch(0, 0, {0: 0, 1: 0})
    client.fetch(session, 1)
    client.bench.partitions[1].make_follower(state(leader=2, epoch=1))
    assert client.fetch(session, 2)[1] == [1]


def test_epochs_must_follow_each_other(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, _ = client.fetch(0, 0, {0: 0})
    assert refused(client, session, 5) == Errors.INVALID_FETCH_SESSION_EPOCH
    assert client.fetch(session, 1)[0] == session  # the refused one did not count
    assert refused(client, session, 1) == Errors.INVALID_FETCH_SESSION_EPOCH
    assert refused(client, session + 1, 1) == Errors.FETCH_SESSION_ID_NOT_FOUND
    assert refused(client, 0, 1) == Errors.FETCH_SESSION_ID_NOT_FOUND


def test_the_final_epoch_closes_and_reads_without_a_session(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, _ = client.fetch(0, 0, {0: 0})
    assert client.fetch(session, -1, {0: 0, 1: 0}) == (0, [0, 1])
    assert len(client.cache) == 0
    assert not client.bench.partitions[0].watchers  # nothing is left behind
    assert refused(client, session, 1) == Errors.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_in_a_session_begins_a_new_one(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, _ = client.fetch(0, 0, {0: 0})
    again, answered = client.fetch(session, 0, {1: 0})
    assert again not in (0, session)
    assert answered == [1]
    assert len(client.cache) == 1


def test_a_session_that_forgot_everything_is_over(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, _ = client.fetch(0, 0, {0: 0})
    assert client.fetch(session, 1, forget=(0,)) == (0, [])
    assert len(client.cache) == 0


def test_names_and_ids_do_not_mix(tmp_path: Path) -> None:
    client = Client(tmp_path)
    session, _ = client.fetch(0, 0, {0: 0}, version=13)
    assert refused(client, session, 1, version=12) == Errors.FETCH_SESSION_TOPIC_ID_ERROR
    append(client.bench.partitions[0])
    assert client.fetch(session, 1, version=13)[1] == [0]


def test_a_topic_id_may_become_known_later(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.names.clear()
    session, _ = client.fetch(0, 0, {0: 0}, version=13)
    client.names[ID] = "t"
    append(client.bench.partitions[0])
    assert client.fetch(session, 1, version=13)[1] == [0]


def test_without_room_there_is_no_session_until_one_is_stale(tmp_path: Path) -> None:
    client = Client(tmp_path, slots=1)
    first, _ = client.fetch(0, 0, {0: 0})
    assert client.fetch(0, 0, {1: 0}) == (0, [1])
    client.clock.advance(EVICTION_MS + 1)
    second, _ = client.fetch(0, 0, {1: 0})
    assert second not in (0, first)
    assert refused(client, first, 1) == Errors.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_pushes_a_consumer_out(tmp_path: Path) -> None:
    client = Client(tmp_path, slots=1)
    for led in client.bench.partitions:
        led.make_leader(state(replicas=(1, 2), epoch=1), 0)
    client.fetch(0, 0, {0: 0})
    assert client.fetch(0, 0, {0: 0}, replica_id=2)[0] != 0


def test_what_kind_of_fetch_it_is(tmp_path: Path) -> None:
    client = Client(tmp_path)
    names = client.names.get
    assert isinstance(client.cache.open(FetchRequest(session_epoch=-1), 12, names), SessionlessFetch)
    assert isinstance(client.cache.open(FetchRequest(session_epoch=0), 12, names), SessionlessFetch)  # of nothing
    topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=0)])]
    assert isinstance(client.cache.open(FetchRequest(session_epoch=0, topics=topics), 12, names), FetchSession)
