"""What tells our brokers from Apache Kafka's, and when the answer changes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.broker.foreign_brokers import ForeignBrokers
from pybroker.controller.embedded_store import EmbeddedStore
from pybroker.controller.paths import BROKER_IDS, BrokerNode, Endpoint, encode_broker
from pybroker.controller.store import MetadataStore

OURS = encode_broker(BrokerNode(1, (Endpoint("PLAINTEXT", "h", 1, "PLAINTEXT"),), release="0.1.0"), 0)
KAFKA = encode_broker(BrokerNode(2, (Endpoint("PLAINTEXT", "h", 2, "PLAINTEXT"),)), 0)
OLD_KAFKA = json.dumps({"version": 1, "host": "h", "port": 3, "jmx_port": -1, "timestamp": "0"}).encode()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / "store.db")
    await opened.create(BROKER_IDS, parents=True)
    await opened.create(f"{BROKER_IDS}/1", OURS)
    yield opened
    await opened.close()


class Watching:
    """Foreign brokers being followed, and how often they were told to have come or gone."""

    def __init__(self, store: MetadataStore) -> None:
        self.brokers = ForeignBrokers(store)
        self.changes = 0
        self.brokers.on_change.append(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def until(self, *ids: int) -> None:
        async with asyncio.timeout(10):
            while self.brokers.ids != set(ids):
                await asyncio.sleep(0.001)


async def test_one_line_when_the_first_comes_and_when_the_last_goes(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watching = Watching(store)
    await watching.brokers.load()
    assert watching.brokers.none and watching.changes == 0
    following = asyncio.create_task(watching.brokers.run())
    await store.create(f"{BROKER_IDS}/2", KAFKA)
    await watching.until(2)
    await store.create(f"{BROKER_IDS}/3", OLD_KAFKA)
    await watching.until(2, 3)
    await store.create(f"{BROKER_IDS}/4", OURS)
    await store.delete(f"{BROKER_IDS}/2")
    await watching.until(3)
    assert watching.changes == 1
    await store.delete(f"{BROKER_IDS}/3")
    await watching.until()
    assert watching.changes == 2
    following.cancel()
    told = [record.getMessage() for record in caplog.records if "of pybroker" in record.getMessage()]
    assert [line.partition(":")[0] for line in told] == [
        "Brokers 2 are not of pybroker", "All brokers are of pybroker",
    ]  # fmt: skip


async def test_what_is_not_understood_is_not_ours(store: EmbeddedStore) -> None:
    await store.create(f"{BROKER_IDS}/5", b"?")
    watching = Watching(store)
    await watching.brokers.load()
    assert watching.brokers.ids == {5} and watching.changes == 1
