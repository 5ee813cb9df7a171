"""Leaders that write their ISRs themselves, on a store of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.broker.isr_writes import IsrWrites
from pybroker.controller import paths
from pybroker.controller.embedded_store import FILE_NAME, EmbeddedStore
from pybroker.controller.paths import LeaderAndIsr
from pybroker.controller.store import StoreError
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from pybroker.protocol.types import TopicPartition

pytestmark = pytest.mark.timeout(60)

AT = TopicPartition("t", 0)
BEFORE = LeaderAndIsr(leader=1, leader_epoch=4, isr=(1, 2), controller_epoch=7)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / FILE_NAME)
    await opened.create(paths.ISR_CHANGES, parents=True)
    await opened.create(paths.partition_state("t", 0), paths.encode_partition_state(BEFORE), parents=True)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def writes(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[IsrWrites]:
    monkeypatch.setattr("pybroker.broker.isr_writes.TELL_SECONDS", 0.01)
    made = IsrWrites(store, 1)
    yield made
    await made.close()


async def ask(
    writes: IsrWrites, isr: Sequence[int], *, index: int = 0, leader_epoch: int = 4, version: int = 0
) -> tuple[Errors, list[int], int]:
    """Error, ISR and partition epoch of the answer."""
    wanted = PartitionData(partition_index=index, leader_epoch=leader_epoch, new_isr=list(isr), partition_epoch=version)
    request = AlterPartitionRequest(broker_id=1, topics=[TopicData(topic_name="t", partitions=[wanted])])
    response = await writes.alter_partitions(request)
    (topic,) = response.topics
    (row,) = topic.partitions
    assert (topic.topic_name, row.partition_index) == ("t", index)
    return Errors(row.error_code), list(row.isr), row.partition_epoch


async def node(store: EmbeddedStore) -> tuple[bytes, int]:
    data, stat = await store.get(paths.partition_state("t", 0))
    return data, stat.version


async def told(store: EmbeddedStore, count: int) -> list[bytes]:
    """The notifications, when there are so many."""
    async with asyncio.timeout(20):
        while len(names := await store.children(paths.ISR_CHANGES)) < count:
            await asyncio.sleep(0.001)
    return [(await store.get(f"{paths.ISR_CHANGES}/{name}"))[0] for name in names]


async def test_the_state_is_written_as_kafka_does_and_told(store: EmbeddedStore, writes: IsrWrites) -> None:
    assert await ask(writes, [1]) == (Errors.NONE, [1], 1)
    assert await node(store) == (
        b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":4,"isr":[1]}', 1,
    )  # fmt: skip
    assert await told(store, 1) == [b'{"version":1,"partitions":[{"topic":"t","partition":0}]}']
    assert await ask(writes, [1, 2, 3], version=1) == (Errors.NONE, [1, 2, 3], 2)
    assert len(await told(store, 2)) == 2


@pytest.mark.parametrize(
    "now", [BEFORE._replace(leader_epoch=5, leader=2), BEFORE._replace(leader_epoch=5), BEFORE._replace(leader=-1)]
)
async def test_a_deposed_leader_changes_nothing(store: EmbeddedStore, writes: IsrWrites, now: LeaderAndIsr) -> None:
    data = paths.encode_partition_state(now)
    await store.set(paths.partition_state("t", 0), data)
    assert (await ask(writes, [1]))[0] == Errors.FENCED_LEADER_EPOCH
    assert await node(store) == (data, 1)


async def test_a_leader_that_did_not_hear_of_its_own_write_learns_what_it_wrote(
    store: EmbeddedStore, writes: IsrWrites
) -> None:
    assert await ask(writes, [1]) == (Errors.NONE, [1], 1)
    for wanted in ([1], [1, 2, 3]):
        assert await ask(writes, wanted, version=0) == (Errors.NONE, [1], 1)
    assert (await node(store))[1] == 1


async def test_a_write_that_comes_between_is_not_overwritten(
    store: EmbeddedStore, writes: IsrWrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_many = store.get_many

    async def overtaken(wanted: Sequence[str]) -> object:
        found = await get_many(wanted)
        await store.set(wanted[0], b"the controller's")
        return found

    monkeypatch.setattr(store, "get_many", overtaken)
    assert (await ask(writes, [1]))[0] == Errors.INVALID_UPDATE_VERSION
    assert (await node(store))[0] == b"the controller's"


async def test_what_is_missing_or_damaged_is_refused(store: EmbeddedStore, writes: IsrWrites) -> None:
    assert (await ask(writes, [1], index=9))[0] == Errors.UNKNOWN_TOPIC_OR_PARTITION
    await store.set(paths.partition_state("t", 0), b"{]")
    assert (await ask(writes, [1]))[0] == Errors.UNKNOWN_SERVER_ERROR


async def test_a_store_that_fails_delays_but_loses_nothing(
    store: EmbeddedStore, writes: IsrWrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, failures = store.create, 2

    async def failing(path: str, data: bytes | None = None, *, sequential: bool = False) -> str:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreError(path, reason="disk full")
        return await create(path, data, sequential=sequential)

    monkeypatch.setattr(store, "create", failing)
    assert (await ask(writes, [1]))[0] == Errors.NONE
    assert await told(store, 1) == [paths.encode_partition_list([AT])]
    monkeypatch.setattr(store, "get_many", failing)
    failures = 1
    with pytest.raises(ConnectionError, match="disk full"):
        await ask(writes, [1, 2], version=1)
