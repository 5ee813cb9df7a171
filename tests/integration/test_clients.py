"""Real clients create a topic, write 10,000 records in each codec, read them back, and again after a restart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import records as batches
from tests.support.broker import BrokerProcess
from tests.support.clients import CLIENTS, CODECS, Client, Kcat, Sent, expected, many

COUNT = 10_000
RUNS = [pytest.param(client, codec, id=f"{client.name}-{codec}") for client in CLIENTS for codec in client.codecs]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("clients")) / "data") as running:
        yield running


def need(client: Client) -> None:
    """Skips where a client's program is missing; not on the CI machine."""
    if isinstance(client, Kcat) and Kcat.missing():
        message = "kcat is not installed"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


def topic_of(client: Client, codec: str) -> str:
    return f"{client.name}-{codec}"


def records_of(client: Client) -> list[Sent]:
    return many(COUNT, client.headers, client.nulls)


def stored_codecs(broker: BrokerProcess, topic: str) -> set[str]:
    """Codecs in the headers of the stored batches; of those large enough that compressing them pays."""
    found, offset = set(), 0
    with broker.client() as client:
        end = client.end_offset(topic)
        while offset < end:
            data = client.fetch(topic, offset)["Records"]
            found |= {CODECS[each.attributes & 7] for each in batches.headers(data) if each and each.count > 20}
            offset = batches.next_offset(data)
    return found


@pytest.mark.parametrize(("client", "codec"), RUNS)
def test_write_and_read(broker: BrokerProcess, client: Client, codec: str) -> None:
    need(client)
    topic, records = topic_of(client, codec), records_of(client)
    client.create(broker.address, topic)
    client.produce(broker.address, topic, codec, records)
    assert client.consume(broker.address, topic, COUNT) == expected(client, records)
    assert stored_codecs(broker, topic) == {codec}


def test_read_after_a_restart(broker: BrokerProcess) -> None:
    broker.restart()
    for client in CLIENTS:
        if isinstance(client, Kcat) and Kcat.missing():
            continue
        for codec in client.codecs:
            got = client.consume(broker.address, topic_of(client, codec), COUNT)
            assert got == expected(client, records_of(client)), topic_of(client, codec)


def test_one_client_reads_what_another_wrote(broker: BrokerProcess) -> None:
    """The oldest reads what the newest wrote (down-conversion), and the other way round."""
    oldest, newest = CLIENTS[1], CLIENTS[2]
    for codec in oldest.codecs:
        got = oldest.consume(broker.address, topic_of(newest, codec), 100)
        assert got == [each._replace(headers=()) for each in records_of(newest)[:100]], codec
        assert newest.consume(broker.address, topic_of(oldest, codec), 100) == records_of(oldest)[:100], codec
