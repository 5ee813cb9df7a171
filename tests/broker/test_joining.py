"""When a broker that starts may tell clients of the cluster."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pybroker.broker import joining
from pybroker.broker.joining import know_the_cluster
from pybroker.broker.metadata_cache import MetadataCache
from pybroker.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)


class Orders:
    def __init__(self) -> None:
        self.metadata_known = asyncio.Event()


class Store:
    """Has these topics and deletions."""

    def __init__(self, *topics: str, deleted: tuple[str, ...] = ()) -> None:
        self.found = {"/brokers/topics": list(topics), "/admin/delete_topics": list(deleted)}

    async def children(self, path: str) -> list[str]:
        return self.found[path]


def told(*topics: str) -> UpdateMetadataRequest:
    state = UpdateMetadataPartitionState(partition_index=0, leader=1, leader_epoch=0, isr=[1], replicas=[1])
    states = [UpdateMetadataTopicState(topic_name=name, partition_states=[state]) for name in topics]
    return UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=states, live_brokers=[])


async def begin(orders: Orders, cache: MetadataCache, store: Store) -> asyncio.Task[None]:
    cache.complete.clear()
    joining = asyncio.create_task(know_the_cluster(cast(Any, orders), cache, cast(Any, store)))
    await asyncio.sleep(0)
    return joining


async def test_a_new_controller_tells_of_brokers_first(caplog: pytest.LogCaptureFixture) -> None:
    orders, cache = Orders(), MetadataCache("cluster", 1)
    task = await begin(orders, cache, Store("t"))
    cache.update(told())
    orders.metadata_known.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not cache.complete.is_set()
    cache.update(told("t"))
    await asyncio.wait_for(task, 10)
    assert cache.complete.is_set() and not caplog.records


@pytest.mark.parametrize("store", [Store(), Store("gone", deleted=("gone",))])
async def test_where_there_are_no_topics_brokers_are_enough(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    orders, cache = Orders(), MetadataCache("cluster", 1)
    task = await begin(orders, cache, store)
    orders.metadata_known.set()
    await asyncio.wait_for(task, 10)
    assert cache.complete.is_set() and not caplog.records


@pytest.mark.parametrize("silent", [True, False])
async def test_it_does_not_wait_for_ever(
    silent: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining, "FIRST_METADATA_SECONDS", 0.02)
    monkeypatch.setattr(joining, "FIRST_TOPICS_SECONDS", 0.02)
    orders, cache = Orders(), MetadataCache("cluster", 1)
    if not silent:
        orders.metadata_known.set()
    await asyncio.wait_for(await begin(orders, cache, Store("t")), 10)
    assert cache.complete.is_set() and len(caplog.records) == 1
