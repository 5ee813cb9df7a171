"""A follower's side of a fetch session, against the leader's own."""

from __future__ import annotations

import pytest

from pybroker.broker.fetch_sessions import FetchSessionCache
from pybroker.protocol.codec import decode, encode_bytes
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.fetch import FetchRequest, FetchResponse
from pybroker.protocol.uuids import ZERO_UUID
from pybroker.replication.fetch_requests import FetchRequests, FetchSettings, Key, Wanted

IDS = {"a": b"\1" * 16, "b": b"\2" * 16}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
SETTINGS = FetchSettings(broker_id=2)


def key(topic: str, index: int) -> Key:
    return topic, IDS[topic], index


def at(offset: int) -> Wanted:
    return 5, offset, 4, 0


def sent(requests: FetchRequests, wanted: dict[Key, Wanted]) -> FetchRequest:
    """The request for just these, as the leader gets it."""
    for gone in [key for key in requests._wanted if key not in wanted]:
        requests.drop(gone)
    for each, values in wanted.items():
        requests.want(each, values)
    request = requests.build()
    decoded, _ = decode(FetchRequest, requests.version, encode_bytes(request, requests.version))
    assert isinstance(decoded, FetchRequest)
    return decoded


def named(request: FetchRequest) -> list[tuple[bytes, list[tuple[int, int]]]]:
    return [
        (topic.topic_id, [(each.partition, each.fetch_offset) for each in topic.partitions])
        for topic in request.topics
    ]


def test_once_all_then_what_changes() -> None:
    requests = FetchRequests(SETTINGS, broker_epoch=77)
    both = {key("a", 0): at(1), key("a", 1): at(2), key("b", 0): at(3)}
    first = sent(requests, both)
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 77)
    assert (first.max_wait_ms, first.min_bytes, first.max_bytes) == (500, 1, 10 << 20)
    assert named(first) == [(IDS["a"], [(0, 1), (1, 2)]), (IDS["b"], [(0, 3)])]
    requests.answered(FetchResponse(session_id=9))
    assert named(sent(requests, both)) == []
    requests.answered(FetchResponse(session_id=9))
    third = sent(requests, {key("a", 0): at(1), key("a", 1): at(8)})
    assert (third.session_id, third.session_epoch) == (9, 2)
    assert named(third) == [(IDS["a"], [(1, 8)])]
    assert [(gone.topic_id, gone.partitions) for gone in third.forgotten_topics_data] == [(IDS["b"], [0])]


def test_what_came_and_went_between_two_requests() -> None:
    requests = FetchRequests(SETTINGS)
    sent(requests, {key("a", 0): at(1), key("a", 1): at(1)})
    requests.answered(FetchResponse(session_id=9))
    requests.drop(key("a", 0))
    requests.want(key("a", 0), at(1))
    requests.want(key("b", 0), at(1))
    requests.drop(key("b", 0))
    again = requests.build()
    assert named(again) == [(IDS["a"], [(0, 1)])]
    assert again.forgotten_topics_data == []
    requests.answered(FetchResponse(session_id=9))
    requests.drop(key("a", 1))
    requests.reset()
    anew = requests.build()
    assert (anew.session_epoch, named(anew), anew.forgotten_topics_data) == (0, [(IDS["a"], [(0, 1)])], [])


def test_a_leader_without_room_for_sessions_is_asked_in_full() -> None:
    requests = FetchRequests(SETTINGS)
    for _ in range(3):
        request = sent(requests, {key("a", 0): at(1)})
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert named(request)
        requests.answered(FetchResponse(session_id=0))


def test_a_session_that_is_gone_is_begun_anew() -> None:
    requests = FetchRequests(SETTINGS)
    sent(requests, {key("a", 0): at(1)})
    requests.answered(FetchResponse(session_id=9))
    sent(requests, {key("a", 0): at(1)})
    requests.answered(FetchResponse(error_code=Errors.FETCH_SESSION_ID_NOT_FOUND))
    again = sent(requests, {key("a", 0): at(1)})
    assert (again.session_id, again.session_epoch, len(again.topics)) == (0, 0, 1)


def test_topics_without_id_are_asked_for_by_name() -> None:
    requests = FetchRequests(SETTINGS)
    wanted = {key("a", 0): at(1)}
    sent(requests, wanted)
    requests.answered(FetchResponse(session_id=9))
    request = sent(requests, wanted | {("old", ZERO_UUID, 0): at(0)})
    assert requests.version == 12
    assert (request.session_id, request.session_epoch, request.replica_id) == (0, 0, 2)
    assert [topic.topic for topic in request.topics] == ["a", "old"]


def test_the_leaders_side_agrees() -> None:
    cache = FetchSessionCache(10, lambda: 0)
    requests = FetchRequests(SETTINGS)
    wanted = {key("a", 0): at(1), key("b", 0): at(1)}
    for step in range(4):
        fetching = cache.open(sent(requests, wanted), requests.version, NAMES.get)
        requests.answered(FetchResponse(session_id=fetching.session_id))
        assert requests.in_session
        wanted = wanted | {key("a", 0): at(step + 2)}
    assert cache.partitions == 2
    fetching = cache.open(sent(requests, {}), requests.version, NAMES.get)
    assert (fetching.session_id, len(cache)) == (0, 0)


RECORDED_ID = bytes.fromhex("07e8daf6715f4115bf0df26aedbc123f")
# Fetch version, broker, its epoch, partition, the first request of a follower that Kafka 3.9.2 sent (behind its header)
RECORDED = [
    (17, 1, 26, 1,
     "000001f40000000100a000000000000000000000000207e8daf6715f4115bf0df26aedbc123f0200000001000000000000000000000000"
     "ffffffff0000000000000000001000000000010101010d00000001000000000000001a00"),
    (12, 3, -1, 1,
     "00000003000001f40000000100a000000000000000000000000204742d610200000001000000000000000000000000ffffffff"
     "0000000000000000001000000000010100"),
    (11, 1, -1, 2,
     "00000001000001f40000000100a00000000000000000000000000000010003742d6100000001000000020000000000000000"
     "00000000000000000000000000100000000000000000"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "broker", "epoch", "partition", "body"), RECORDED)
def test_the_bytes_are_kafkas(version: int, broker: int, epoch: int, partition: int, body: str) -> None:
    requests = FetchRequests(FetchSettings(broker, version), epoch)
    requests.want(("t-a", RECORDED_ID, partition), (0, 0, -1, 0))
    request = requests.build()
    assert requests.version == version
    assert encode_bytes(request, version).hex() == body
