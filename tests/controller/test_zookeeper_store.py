"""What only the ZooKeeper store has: connections that break, sessions that expire, chroot, ACLs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pybroker.controller.store import (
    Check,
    Create,
    Delete,
    Op,
    SessionExpired,
    SessionState,
    SetData,
    StoreClosed,
    StoreError,
    WatchEvent,
)
from tests.support.proxy import CuttableProxy
from tests.support.zookeeper import ZooKeeperServer, free_port, need_zookeeper

need_zookeeper()
from pybroker.controller.zookeeper_session import SessionEvent, ZooKeeperSettings  # noqa: E402
from pybroker.controller.zookeeper_store import ZooKeeperStore  # noqa: E402

DEADLINE = 20.0


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        await asyncio.sleep(0.005)


def begun(*calls: Coroutine[Any, Any, Any]) -> list[asyncio.Future[Any]]:
    """All of them under way, in this order."""
    return [asyncio.ensure_future(call) for call in calls]


async def expire(store: ZooKeeperStore, server: ZooKeeperServer) -> None:
    """End the store's session: connect with its id and password from elsewhere, and close it."""
    from kazoo.client import KazooClient

    session = store._session
    thief = KazooClient(server.address, client_id=(session._session_id, session._session_passwd), timeout=6)
    await asyncio.to_thread(thief.start)
    await asyncio.to_thread(thief.stop)
    thief.close()


@pytest.fixture
def chroot(tmp_path: Path) -> str:
    return f"/store{tmp_path}"


@pytest_asyncio.fixture
async def proxy(zookeeper: ZooKeeperServer) -> AsyncIterator[CuttableProxy]:
    async with CuttableProxy(zookeeper.port) as opened:
        yield opened


@pytest_asyncio.fixture
async def store(proxy: CuttableProxy, chroot: str) -> AsyncIterator[ZooKeeperStore]:
    """Through the proxy."""
    opened = await ZooKeeperStore.connect(ZooKeeperSettings(f"{proxy.address}{chroot}", session_timeout_ms=10_000))
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def other(zookeeper: ZooKeeperServer, store: ZooKeeperStore, chroot: str) -> AsyncIterator[ZooKeeperStore]:
    """Another broker's, on a connection of its own."""
    opened = await ZooKeeperStore.connect(ZooKeeperSettings(f"{zookeeper.address}{chroot}"))
    yield opened
    await opened.close()


async def test_chroot_is_made_and_kept_apart(zookeeper: ZooKeeperServer, store: ZooKeeperStore, chroot: str) -> None:
    await store.create("/a/b", b"1", parents=True)
    whole = await ZooKeeperStore.connect(ZooKeeperSettings(zookeeper.address))
    try:
        assert (await whole.get(f"{chroot}/a/b"))[0] == b"1"
        assert await store.children("/") == ["a"]
        assert await store.multi([Create("/c"), Create("/c/n_", sequential=True)]) == ["/c", "/c/n_0000000000"]
    finally:
        await whole.close()


async def test_one_of_several_hosts_is_enough(zookeeper: ZooKeeperServer, chroot: str) -> None:
    hosts = f"127.0.0.1:{free_port()}, {zookeeper.address}"
    opened = await ZooKeeperStore.connect(ZooKeeperSettings(f"{hosts}{chroot}"))
    await opened.close()


async def test_no_zookeeper_there() -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"did not answer within 300 ms \(127\.0\.0\.1:.*refused"):
        await ZooKeeperStore.connect(ZooKeeperSettings(f"127.0.0.1:{free_port()}", connection_timeout_ms=300))
    assert time.monotonic() - began < 5


async def test_calls_wait_for_the_connection(store: ZooKeeperStore, proxy: CuttableProxy) -> None:
    states: list[SessionState] = []
    store.on_session(states.append)
    session = store.session_id
    await proxy.cut()
    await until(lambda: "suspended" in states, "suspended")
    waiting = begun(store.create("/a", b"1"), store.get("/a"), store.set("/a", b"2"))
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in waiting)
    await proxy.mend()
    created, (data, _), changed = await asyncio.gather(*waiting)
    assert (created, data, changed.version) == ("/a", b"1", 1)
    assert states == ["suspended", "connected"]
    assert store.session_id == session


async def test_lost_answers_are_settled(store: ZooKeeperStore, other: ZooKeeperStore, proxy: CuttableProxy) -> None:
    """The writes arrive, the answers do not: each ends with the answer it would have had, and happens once."""
    await store.create("/epoch", b"0")
    await store.create("/s")
    proxy.mute = True
    waiting = begun(
        store.multi([Create("/controller", b"me", ephemeral=True), SetData("/epoch", b"1", 0)]),
        store.create("/t", b"id"),
        store.set("/t", b"id2", 0),
        store.set("/t", b"id3", 1),
        store.create("/s/n_", b"note", sequential=True),
        store.create("/gone"),
        store.delete("/gone"),
        store.multi([Check("/epoch", 1), SetData("/t", b"id4", 2), Create("/u")]),
        store.get("/t"),
    )
    deadline = time.monotonic() + DEADLINE
    while await other.exists("/u") is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    await proxy.cut()
    await proxy.mend()
    claimed, created, first, second, note, _, _, checked, (data, stat) = await asyncio.gather(*waiting)
    assert claimed == ["/controller", await store.exists("/epoch")]
    assert (created, first.version, second.version, note) == ("/t", 1, 2, "/s/n_0000000000")
    assert checked == [None, stat, "/u"]
    assert (data, stat.version) == (b"id4", 3)
    assert await other.children("/s") == ["n_0000000000"], "written once"
    assert await store.exists("/gone") is None
    owner = await other.exists("/controller")
    assert owner is not None
    assert owner.ephemeral_owner == store.session_id


async def test_every_write_once_while_connections_break(store: ZooKeeperStore, proxy: CuttableProxy) -> None:
    """A chain of versioned sets, the connection cut again and again: none is refused, none happens twice."""
    await store.create("/v")
    await store.create("/n")

    sets = [asyncio.ensure_future(store.set("/v", b"%d" % version, version)) for version in range(2000)]
    notes = [asyncio.ensure_future(store.create("/n/n_", b"%d" % each, sequential=True)) for each in range(200)]
    writing = asyncio.gather(*sets, *notes)

    def written() -> int:
        return sum(each.done() for each in sets)

    while not writing.done():
        enough = written() + 60
        while not writing.done() and written() < enough:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        await proxy.cut()
        await proxy.mend()
        await asyncio.sleep(0.2)
    await writing
    assert [(await each).version for each in sets] == list(range(1, 2001))
    assert (await store.get("/v"))[0] == b"1999"
    found = await store.get_many([f"/n/{name}" for name in await store.children("/n")])
    assert sorted(int(node[0]) for node in found if node) == list(range(200))


async def test_watches_survive_a_lost_connection(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: CuttableProxy
) -> None:
    """What changed meanwhile is told before a read shows it; the rest is still watched."""
    for path in ("/changed", "/deleted", "/parent", "/calm", "/calm-parent"):
        await store.create(path)
    seen: list[WatchEvent] = []
    for path in ("/changed", "/deleted", "/calm"):
        await store.get(path, seen.append)
    for path in ("/parent", "/calm-parent"):
        await store.children(path, seen.append)
    await store.exists("/created", seen.append)
    await store.exists("/absent", seen.append)
    await proxy.cut()
    await other.set("/changed", b"1")
    await other.delete("/deleted")
    await other.create("/parent/child")
    await other.create("/created")
    reading = asyncio.ensure_future(store.get("/changed"))
    await asyncio.sleep(0)
    await proxy.mend()
    assert (await reading)[0] == b"1"
    assert sorted(seen) == [
        WatchEvent("changed", "/changed"),
        WatchEvent("child", "/parent"),
        WatchEvent("created", "/created"),
        WatchEvent("deleted", "/deleted"),
    ]
    seen.clear()
    await other.set("/calm", b"1")
    await other.create("/calm-parent/child")
    await other.create("/absent")
    await until(lambda: len(seen) == 3, "the other events")
    assert sorted(each.type for each in seen) == ["changed", "child", "created"]


async def test_expiry_starts_a_new_session(
    store: ZooKeeperStore, other: ZooKeeperStore, zookeeper: ZooKeeperServer
) -> None:
    states: list[SessionState] = []
    store.on_session(states.append)
    before = store.session_id
    seen: list[WatchEvent] = []
    await store.create("/me", ephemeral=True)
    await store.get("/me", seen.append)
    await expire(store, zookeeper)
    await until(lambda: states[-1:] == ["connected"] and "expired" in states, "a new session")
    assert states == ["suspended", "expired", "connected"]
    assert store.session_id != before
    assert await store.exists("/me") is None
    await store.create("/me", ephemeral=True)
    stat = await other.exists("/me")
    assert stat is not None
    assert stat.ephemeral_owner == store.session_id
    assert seen == [], "watches end with their session"


async def test_calls_of_an_expired_session_fail(
    store: ZooKeeperStore, other: ZooKeeperStore, proxy: CuttableProxy, zookeeper: ZooKeeperServer
) -> None:
    """Nothing of the old session is repeated in the new one."""
    await proxy.cut()
    waiting = begun(store.create("/late", b"x"), store.get("/"))
    await expire(store, zookeeper)
    await proxy.mend()
    for each in waiting:
        with pytest.raises(SessionExpired):
            await each
    assert await store.exists("/late") is None
    assert await store.create("/new") == "/new"


async def test_a_connection_thread_that_gave_up_is_replaced(store: ZooKeeperStore) -> None:
    """As after a change of credentials."""
    states: list[SessionState] = []
    store.on_session(states.append)
    before = store.session_id
    (reading,) = begun(store.get("/"))
    await asyncio.sleep(0)
    store._session_changed(store._session, SessionEvent("ended", reason="ZooKeeper refused our credentials"))
    with pytest.raises(SessionExpired):
        await reading
    await until(lambda: states == ["expired", "connected"], "a new session")
    assert store.session_id != before
    assert await store.create("/new") == "/new"


async def test_close_ends_the_session_at_once(
    zookeeper: ZooKeeperServer, store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    await store.create("/me", ephemeral=True)
    gone = asyncio.Event()
    await other.exists("/me", lambda event: gone.set())
    waiting = asyncio.ensure_future(store.get("/me"))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreClosed):
        await waiting
    await asyncio.wait_for(gone.wait(), DEADLINE)


async def test_close_without_a_connection_does_not_wait(store: ZooKeeperStore, proxy: CuttableProxy) -> None:
    await proxy.cut()
    await until(lambda: not store.connected, "the loss")
    began = time.monotonic()
    await store.close()
    assert time.monotonic() - began < 1


async def test_ten_thousand_reads_and_writes(store: ZooKeeperStore, other: ZooKeeperStore) -> None:
    await store.create("/p")
    paths = [f"/p/{number}" for number in range(10_000)]
    results = await store.multi_many([[Check("/p", 0), Create(path, path.encode())] for path in paths])
    assert results == [[None, path] for path in paths]
    began = time.monotonic()
    found = await other.get_many(paths, watch=lambda event: None)
    assert [node and node[0] for node in found] == [path.encode() for path in paths]
    assert time.monotonic() - began < 15
    await store.delete_recursive("/p")
    assert await store.exists("/p") is None


async def test_refusals_in_a_multi_name_the_operation(store: ZooKeeperStore) -> None:
    await store.create("/a")
    cases: list[list[Op]] = [
        [Check("/a", 9), SetData("/a", b"")],
        [Check("/a", 0), Create("/a")],
        [Check("/a", 0), SetData("/a", b""), Delete("/none")],
    ]
    for index, ops in enumerate(cases):
        (refusal,) = await store.multi_many([ops])
        assert isinstance(refusal, StoreError)
        assert (refusal.index, refusal.path) == (index, ops[index].path)


async def test_acl_of_a_secured_store_needs_credentials(zookeeper: ZooKeeperServer, chroot: str) -> None:
    opened = await ZooKeeperStore.connect(ZooKeeperSettings(f"{zookeeper.address}{chroot}"))
    await opened.close()
    secured = await ZooKeeperStore.connect(ZooKeeperSettings(f"{zookeeper.address}{chroot}", set_acl=True))
    try:
        with pytest.raises(StoreError, match=r"zookeeper\.set\.acl needs"):
            await secured.create("/a")
    finally:
        await secured.close()
