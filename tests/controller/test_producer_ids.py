from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.controller import paths, producer_ids
from pybroker.controller.embedded_store import FILE_NAME, EmbeddedStore
from pybroker.controller.producer_ids import PREFETCH_AT, ProducerIds, allocate_block
from pybroker.protocol.errors import Errors, KafkaError


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / FILE_NAME)
    await opened.create(paths.PRODUCER_ID_BLOCK)
    yield opened
    await opened.close()


def own_blocks(store: EmbeddedStore, broker_id: int) -> ProducerIds:
    return ProducerIds(lambda: allocate_block(store, broker_id))


async def test_ids_count_up_and_blocks_are_written_as_kafka_does(store: EmbeddedStore) -> None:
    ids = own_blocks(store, 2)
    assert [await ids.next_producer_id() for _ in range(3)] == [0, 1, 2]
    data, stat = await store.get(paths.PRODUCER_ID_BLOCK)
    assert data == b'{"version":1,"broker":2,"block_start":"0","block_end":"999"}'
    assert stat.version == 1


async def test_the_next_block_is_fetched_before_the_end(store: EmbeddedStore) -> None:
    ids = own_blocks(store, 2)
    for _ in range(PREFETCH_AT + 1):
        await ids.next_producer_id()
    deadline = asyncio.get_running_loop().time() + 5
    while (await store.get(paths.PRODUCER_ID_BLOCK))[1].version < 2:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0)
    rest = [await ids.next_producer_id() for _ in range(200)]
    assert rest == list(range(PREFETCH_AT + 1, PREFETCH_AT + 201))


async def test_many_at_once_and_two_brokers_never_get_the_same(store: EmbeddedStore) -> None:
    one, two = own_blocks(store, 1), own_blocks(store, 2)
    given = await asyncio.gather(*(ids.next_producer_id() for _ in range(1500) for ids in (one, two)))
    assert len(set(given)) == 3000


async def test_a_restart_skips_the_rest_of_the_block(store: EmbeddedStore) -> None:
    assert await own_blocks(store, 1).next_producer_id() == 0
    assert await own_blocks(store, 1).next_producer_id() == 1000


async def test_a_store_that_does_not_answer_is_not_waited_for_and_its_block_is_used_later(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_ids, "WAIT_SECONDS", 0.001)
    reachable = asyncio.Event()
    taken = 0

    async def take() -> paths.ProducerIdBlock:
        nonlocal taken
        taken += 1
        await reachable.wait()
        return await allocate_block(store, 1)

    ids = ProducerIds(take)
    for _ in range(3):
        with pytest.raises(KafkaError, match="none came yet") as refused:
            await ids.next_producer_id()
        assert refused.value.code == Errors.COORDINATOR_LOAD_IN_PROGRESS
    reachable.set()
    assert await when_there_is_one(ids) == 0
    assert taken == 1


async def test_all_that_wait_for_one_block_wait_once(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come while the store is away: each that waited its own time would hold a request slot for it."""
    monkeypatch.setattr(producer_ids, "WAIT_SECONDS", 0.05)
    reachable = asyncio.Event()

    async def take() -> paths.ProducerIdBlock:
        await reachable.wait()
        return await allocate_block(store, 1)

    ids, loop = ProducerIds(take), asyncio.get_running_loop()
    first = loop.time()
    waited = []
    for _ in range(20):
        began = loop.time()
        with pytest.raises(KafkaError):
            await ids.next_producer_id()
        waited.append(loop.time() - began)
    assert loop.time() - first < 20 * 0.05
    assert sum(each >= 0.04 for each in waited) == 1
    reachable.set()
    assert await when_there_is_one(ids) == 0


async def when_there_is_one(ids: ProducerIds) -> int:
    """An id, asked for as often as a client would."""
    deadline = asyncio.get_running_loop().time() + 10
    while True:
        try:
            return await ids.next_producer_id()
        except KafkaError:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.001)


async def test_without_a_store_the_client_is_asked_to_retry(store: EmbeddedStore) -> None:
    ids = own_blocks(store, 1)
    await store.delete(paths.PRODUCER_ID_BLOCK)
    with pytest.raises(KafkaError) as refused:
        await ids.next_producer_id()
    assert refused.value.code == Errors.COORDINATOR_LOAD_IN_PROGRESS
    await store.create(paths.PRODUCER_ID_BLOCK)
    assert await ids.next_producer_id() == 0
