"""What every MetadataStore must do. A store joins with a factory: `open_store(directory)` gives a connected one, of
the same tree for the same directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.controller.embedded_store import FILE_NAME, EmbeddedStore
from pybroker.controller.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    StoreClosed,
    WatchEvent,
)
from tests.support.zookeeper import ZooKeeperServer

StoreFactory = Callable[[Path], Awaitable[MetadataStore]]


def embedded(request: pytest.FixtureRequest) -> StoreFactory:
    async def open_store(directory: Path) -> MetadataStore:
        return await EmbeddedStore.open(directory / FILE_NAME)

    return open_store


def zookeeper(request: pytest.FixtureRequest) -> StoreFactory:
    server: ZooKeeperServer = request.getfixturevalue("zookeeper")

    async def open_store(directory: Path) -> MetadataStore:
        from pybroker.controller.zookeeper_session import ZooKeeperSettings
        from pybroker.controller.zookeeper_store import ZooKeeperStore

        return await ZooKeeperStore.connect(ZooKeeperSettings(f"{server.address}/contract{directory}"))

    return open_store


FACTORIES = {"embedded": embedded, "zookeeper": zookeeper}


@pytest.fixture(params=sorted(FACTORIES))
def factory(request: pytest.FixtureRequest) -> StoreFactory:
    return FACTORIES[request.param](request)


@pytest_asyncio.fixture
async def store(factory: StoreFactory, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened = await factory(tmp_path)
    yield opened
    await opened.close()


async def events_settle() -> None:
    """Lets callbacks that are already due run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_create_get_set_delete(store: MetadataStore) -> None:
    assert await store.create("/a", b"one") == "/a"
    data, stat = await store.get("/a")
    assert data == b"one"
    assert (stat.version, stat.cversion, stat.ephemeral_owner, stat.num_children) == (0, 0, 0, 0)
    assert stat.czxid == stat.mzxid > 0
    changed = await store.set("/a", b"two")
    assert changed.version == 1
    assert changed.mzxid > changed.czxid == stat.czxid
    assert await store.get("/a") == (b"two", changed)
    await store.delete("/a")
    assert await store.exists("/a") is None
    with pytest.raises(NoNode):
        await store.get("/a")


async def test_null_and_empty_data_read_as_empty(store: MetadataStore) -> None:
    await store.create("/null")
    await store.create("/empty", b"")
    assert (await store.get("/null"))[0] == b""
    assert (await store.get("/empty"))[0] == b""


async def test_refusals_are_named(store: MetadataStore) -> None:
    await store.create("/a")
    with pytest.raises(NodeExists):
        await store.create("/a")
    with pytest.raises(NoNode):
        await store.create("/b/c")
    with pytest.raises(NoNode):
        await store.set("/b", b"")
    with pytest.raises(NoNode):
        await store.delete("/b")
    with pytest.raises(NoNode):
        await store.children("/b")
    with pytest.raises(BadVersion):
        await store.set("/a", b"", version=3)
    with pytest.raises(BadVersion):
        await store.delete("/a", version=3)
    await store.create("/a/b")
    with pytest.raises(NotEmpty):
        await store.delete("/a")
    await store.create("/e", ephemeral=True)
    with pytest.raises(NoChildrenForEphemerals):
        await store.create("/e/child")


async def test_parents_are_made_when_asked(store: MetadataStore) -> None:
    await store.create("/x/y/z", b"1", parents=True)
    assert await store.children("/x") == ["y"]
    with pytest.raises(NodeExists):
        await store.create("/x/y/z", b"1", parents=True)


async def test_children_and_their_version(store: MetadataStore) -> None:
    await store.create("/p")
    for name in ("b", "a", "c"):
        await store.create(f"/p/{name}")
    assert await store.children("/p") == ["a", "b", "c"]
    await store.delete("/p/b")
    stat = await store.exists("/p")
    assert stat is not None
    assert (stat.cversion, stat.num_children, stat.version) == (4, 2, 0)


async def test_sequential_numbers_never_come_back(store: MetadataStore) -> None:
    await store.create("/s")
    assert await store.create("/s/n_", b"", sequential=True) == "/s/n_0000000000"
    assert await store.create("/s/n_", b"", sequential=True) == "/s/n_0000000001"
    await store.delete("/s/n_0000000001")
    assert await store.create("/s/n_", b"", sequential=True) == "/s/n_0000000002"


async def test_multi_is_all_or_nothing(store: MetadataStore) -> None:
    await store.create("/a", b"0")
    with pytest.raises(BadVersion) as refused:
        await store.multi([Create("/b"), SetData("/a", b"1"), Delete("/b"), Check("/a", 7)])
    assert refused.value.index == 3
    assert await store.exists("/b") is None
    assert (await store.get("/a"))[0] == b"0"
    root = await store.exists("/")
    assert root is not None

    results = await store.multi(
        [Check("/a", 0), SetData("/a", b"1", 0), Create("/b", b"x"), Delete("/b"), Create("/c")]
    )
    assert results[0] is None
    assert results[1] == await store.exists("/a")
    assert results[2:] == ["/b", None, "/c"]
    created = await store.exists("/c")
    changed = await store.exists("/a")
    assert created is not None
    assert changed is not None
    assert created.czxid == changed.mzxid, "one multi, one zxid"


async def test_multi_many_are_each_on_their_own_and_in_order(store: MetadataStore) -> None:
    results = await store.multi_many(
        [[Create("/a")], [Create("/a/b")], [Create("/x/y")], [Check("/a", 1), Create("/never")], [Create("/a/c")]]
    )
    assert results[0] == ["/a"]
    assert results[1] == ["/a/b"]
    assert isinstance(results[2], NoNode)
    assert isinstance(results[3], BadVersion)
    assert results[4] == ["/a/c"]
    assert await store.exists("/never") is None


async def test_get_many(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    await store.create("/c", b"3")
    found = await store.get_many(["/a", "/b", "/c"])
    assert [each and each[0] for each in found] == [b"1", None, b"3"]


async def test_delete_recursive(store: MetadataStore) -> None:
    for path in ("/t", "/t/a", "/t/a/b", "/t/c"):
        await store.create(path)
    await store.delete_recursive("/t")
    assert await store.exists("/t") is None
    await store.delete_recursive("/t")


async def test_watch_on_data_fires_once_and_before_the_new_data_is_read(store: MetadataStore) -> None:
    await store.create("/w", b"0")
    seen: list[WatchEvent] = []
    await store.get("/w", seen.append)
    await store.set("/w", b"1")
    assert (await store.get("/w"))[0] == b"1"
    assert seen == [WatchEvent("changed", "/w")]
    await store.set("/w", b"2")
    await store.get("/w")
    assert len(seen) == 1


async def test_watch_set_by_exists_waits_for_the_creation(store: MetadataStore) -> None:
    seen: list[WatchEvent] = []
    assert await store.exists("/w", seen.append) is None
    with pytest.raises(NoNode):
        await store.get("/w", seen.append)
    await store.create("/w")
    await store.exists("/w", seen.append)
    await store.delete("/w")
    assert await store.exists("/w") is None
    assert seen == [WatchEvent("created", "/w"), WatchEvent("deleted", "/w")]


async def test_watch_on_children(store: MetadataStore) -> None:
    await store.create("/p")
    seen: list[WatchEvent] = []
    await store.children("/p", seen.append)
    await store.set("/p", b"data is not a child")
    await store.create("/p/a")
    assert await store.children("/p", seen.append) == ["a"]
    await store.set("/p/a", b"nor is a child's data")
    await store.delete("/p/a")
    assert await store.children("/p", seen.append) == []
    await store.delete("/p")
    assert await store.exists("/p") is None
    assert seen == [WatchEvent("child", "/p"), WatchEvent("child", "/p"), WatchEvent("deleted", "/p")]


async def test_one_watcher_of_data_and_children_hears_a_deletion_once(store: MetadataStore) -> None:
    await store.create("/p")
    seen: list[WatchEvent] = []
    watch = seen.append
    await store.get("/p", watch)
    await store.children("/p", watch)
    await store.exists("/p", watch)
    await store.delete("/p")
    await store.exists("/p")
    assert seen == [WatchEvent("deleted", "/p")]


async def test_watch_does_not_fire_for_a_change_already_read(store: MetadataStore) -> None:
    await store.create("/w", b"0")
    seen: list[WatchEvent] = []
    writing = asyncio.ensure_future(store.set("/w", b"1"))
    await asyncio.sleep(0)
    data, _ = await store.get("/w", seen.append)
    await writing
    await events_settle()
    assert (data, seen) in ((b"1", []), (b"0", [WatchEvent("changed", "/w")]))


async def test_writes_take_effect_in_the_order_of_the_calls(store: MetadataStore) -> None:
    await store.create("/o")
    await asyncio.gather(*(store.set("/o", b"%d" % n) for n in range(200)))
    data, stat = await store.get("/o")
    assert (data, stat.version) == (b"199", 200)
    names = await asyncio.gather(*(store.create("/o/n", sequential=True) for _ in range(50)))
    assert names == sorted(names)


async def test_what_was_written_is_there_after_reopening(factory: StoreFactory, tmp_path: Path) -> None:
    first = await factory(tmp_path)
    await first.create("/keep", b"1", parents=True)
    await first.set("/keep", b"2")
    await first.create("/keep/n_", sequential=True)
    await first.create("/gone", b"", ephemeral=True)
    stat = await first.exists("/gone")
    assert stat is not None
    assert stat.ephemeral_owner == first.session_id
    before = await first.get("/keep")
    await first.close()

    second = await factory(tmp_path)
    try:
        assert await second.get("/keep") == before
        assert await second.exists("/gone") is None
        assert await second.create("/keep/n_", sequential=True) == "/keep/n_0000000001"
        await second.create("/gone", b"", ephemeral=True)
        again = await second.exists("/gone")
        assert again is not None
        assert again.czxid > stat.czxid, "czxid is the broker epoch: it must grow"
        assert again.ephemeral_owner == second.session_id != first.session_id
    finally:
        await second.close()


async def test_closed_store_refuses(factory: StoreFactory, tmp_path: Path) -> None:
    opened = await factory(tmp_path)
    await opened.close()
    await opened.close()
    with pytest.raises(StoreClosed):
        await opened.get("/")
    with pytest.raises(StoreClosed):
        await opened.create("/a")
