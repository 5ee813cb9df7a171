"""The metadata store of a broker that is a cluster of its own: one SQLite file, nothing to install.

The whole tree is in memory; the file is its durable copy. A write changes the tree at once, on the event loop, and is
answered when its rows are on disk: a single thread writes them, all writes that wait together in one commit
(synchronous=FULL). A read that may have seen a change still on its way to the disk waits for that commit too, so
nothing is ever shown that a power loss could take back.

File: docs/formats/metadata-store.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pybroker.controller.store import (
    ANY_VERSION,
    Create,
    Delete,
    MultiResult,
    NodeExists,
    NodeStat,
    NoNode,
    Op,
    Result,
    SessionState,
    SetData,
    StoreClosed,
    StoreError,
    Watch,
    WatchEvent,
)
from pybroker.controller.tree import Record, Tree, split
from pybroker.protocol.pace import Pace

if TYPE_CHECKING:
    import sqlite3

#: Directly in the first log directory: a subdirectory there would make Apache Kafka refuse the directory.
FILE_NAME = "pybroker-metadata.db"
FORMAT = 1

_SCHEMA = """CREATE TABLE node(path TEXT PRIMARY KEY, data BLOB, czxid INTEGER, mzxid INTEGER, version INTEGER,
created INTEGER, ephemeral_owner INTEGER) WITHOUT ROWID"""


class _Content(NamedTuple):
    database: sqlite3.Connection
    tree: Tree
    zxid: int
    session: int


class _Batch:
    """Changes that go to disk in one commit, and who waits for it."""

    __slots__ = ("before", "changes", "notices", "waiters")

    def __init__(self) -> None:
        self.changes: dict[str, Record | None] = {}
        self.before: list[tuple[str, Record | None]] = []
        self.notices: list[tuple[Watch, WatchEvent]] = []
        self.waiters: list[asyncio.Future[None]] = []


class EmbeddedStore:
    """A MetadataStore in one file, for one process. Made by `EmbeddedStore.open`."""

    def __init__(self, content: _Content, writer: ThreadPoolExecutor) -> None:
        self._database, self._tree, self._zxid, self._session = content
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._open_batch = _Batch()
        self._committing: _Batch | None = None
        self._flush_scheduled = False
        self._closed = False
        self._end_sessions()

    @classmethod
    async def open(cls, path: str | os.PathLike[str]) -> EmbeddedStore:
        """Opens or creates the file. Ephemeral nodes of earlier sessions are removed. Raises StoreError when the file
        is in use, damaged or of another format."""
        writer = ThreadPoolExecutor(1, thread_name_prefix="metadata-store")
        try:
            content = await asyncio.get_running_loop().run_in_executor(writer, _open, os.fspath(path))
        except BaseException:
            writer.shutdown(wait=False)
            raise
        return cls(content, writer)

    @property
    def session_id(self) -> int:
        return self._session

    # Reads: the tree answers at once; `_settled` then waits for what the answer may have shown too early.

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        self._check_open(path)
        try:
            found = self._tree.data(path), self._tree.stat(path)
            if watch is not None:
                self._data_watches.setdefault(path, {})[watch] = None
        finally:
            await self._settled()
        return found

    async def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[tuple[bytes, NodeStat] | None]:
        self._check_open("/")
        found: list[tuple[bytes, NodeStat] | None] = []
        pace = Pace()
        for path in paths:
            if path not in self._tree:
                found.append(None)
                continue
            found.append((self._tree.data(path), self._tree.stat(path)))
            if watch is not None:
                self._data_watches.setdefault(path, {})[watch] = None
            if pace.due():
                await pace.rest()
        await self._settled()
        return found

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        self._check_open(path)
        stat = self._tree.stat(path) if path in self._tree else None
        if watch is not None:
            self._data_watches.setdefault(path, {})[watch] = None
        await self._settled()
        return stat

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        self._check_open(path)
        try:
            names = self._tree.children(path)
            if watch is not None:
                self._child_watches.setdefault(path, {})[watch] = None
        finally:
            await self._settled()
        return names

    # Writes

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        if parents:
            parent = split(path)[0]
            if parent not in self._tree:
                try:
                    await self.create(parent, parents=True)
                except NodeExists:
                    pass  # another writer made it meanwhile, which is all we want
        (created,) = await self.multi([Create(path, data, ephemeral, sequential)])
        assert isinstance(created, str)
        return created

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> NodeStat:
        (stat,) = await self.multi([SetData(path, data, version)])
        assert isinstance(stat, NodeStat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> list[Result]:
        self._check_open(ops[0].path if ops else "/")
        try:
            return self._apply(ops)
        finally:
            await self._settled()

    async def multi_many(self, transactions: Sequence[Sequence[Op]]) -> list[MultiResult]:
        results: list[MultiResult] = []
        pace = Pace()
        for ops in transactions:
            self._check_open(ops[0].path if ops else "/")
            try:
                results.append(self._apply(ops))
            except StoreError as refusal:
                results.append(refusal)
            if pace.due():
                await pace.rest()
        await self._settled()
        return results

    async def delete_recursive(self, path: str) -> None:
        self._check_open(path)
        if path not in self._tree:
            await self._settled()
            return
        results = await self.multi_many([[Delete(node)] for node in list(self._tree.below(path))])
        for result in results:
            if isinstance(result, StoreError) and not isinstance(result, NoNode):
                raise result

    def on_session(self, callback: Callable[[SessionState], None]) -> None:
        """The one session lasts as long as the store is open: there is nothing to call back for."""

    async def close(self) -> None:
        if self._closed:
            return
        self._end_sessions()
        self._closed = True
        self._data_watches.clear()
        self._child_watches.clear()
        try:
            await self._settled()
        finally:
            await self._loop.run_in_executor(self._writer, self._database.close)
            self._writer.shutdown(wait=False)

    # How a write gets from the tree to the disk

    def _apply(self, ops: Sequence[Op]) -> list[Result]:
        applied = self._tree.apply(ops, self._zxid + 1, self._session)
        if applied.before:
            self._zxid += 1
            batch = self._open_batch
            batch.before += applied.before
            for path, _ in applied.before:
                batch.changes[path] = self._tree.record(path)
            if self._data_watches or self._child_watches:
                for event in applied.events:
                    self._take_watches(event, batch.notices)
            if self._committing is None and not self._flush_scheduled:
                # In the next turn of the loop, so that the writes of this one share a commit.
                self._flush_scheduled = True
                self._loop.call_soon(self._flush)
        return applied.results

    def _take_watches(self, event: WatchEvent, notices: list[tuple[Watch, WatchEvent]]) -> None:
        watches: dict[Watch, None] = {}
        if event.type != "child":
            watches.update(self._data_watches.pop(event.path, ()))
        if event.type in ("child", "deleted"):
            watches.update(self._child_watches.pop(event.path, ()))
        notices.extend((watch, event) for watch in watches)

    async def _settled(self) -> None:
        """Returns when all changes made so far are on disk. Raises StoreError when they can't be written."""
        batch = self._open_batch if self._open_batch.changes else self._committing
        if batch is not None:
            waiter = self._loop.create_future()
            batch.waiters.append(waiter)
            await waiter

    def _flush(self) -> None:
        self._flush_scheduled = False
        batch = self._open_batch
        if self._committing is not None or not batch.changes:
            return
        self._committing, self._open_batch = batch, _Batch()
        future = self._loop.run_in_executor(
            self._writer, _commit, self._database, batch.changes, self._zxid, self._session
        )
        future.add_done_callback(self._flushed)

    def _flushed(self, future: asyncio.Future[None]) -> None:
        batch = self._committing
        assert batch is not None
        self._committing = None
        if future.cancelled():
            error: BaseException | None = StoreClosed("/")
        else:
            error = future.exception()
        if error is not None:
            self._take_back(batch, error)
            return
        self._notify(batch)
        for waiter in batch.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._flush()

    def _take_back(self, batch: _Batch, error: BaseException) -> None:
        """The disk refused: the tree returns to what the file holds, and every write and read that depended on it
        fails. The watches taken fire all the same; who looks again finds the old data."""
        failed = [batch, self._open_batch]
        self._open_batch = _Batch()
        for each in reversed(failed):
            self._tree.undo(each.before)
        for each in failed:
            self._notify(each)
            for waiter in each.waiters:
                if not waiter.done():
                    waiter.set_exception(StoreError("/", reason=f"the metadata store can't be written: {error}"))

    def _notify(self, batch: _Batch) -> None:
        for watch, event in batch.notices:
            try:
                watch(event)
            except Exception as error:  # one watcher's mistake must not silence the others
                self._loop.call_exception_handler({"message": f"watch on {event.path} failed", "exception": error})

    def _end_sessions(self) -> None:
        """Removes every ephemeral node: at the start those of earlier sessions, at the end our own."""
        for path in self._tree.ephemerals():
            self._apply([Delete(path)])

    def _check_open(self, path: str) -> None:
        if self._closed:
            raise StoreClosed(path)


# What the writer thread does


def _open(path: str) -> _Content:
    import sqlite3  # here, so that the loop does something else meanwhile

    database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("PRAGMA fullfsync=ON")  # macOS; no effect elsewhere
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found == 0:
            _create_tables(database)
        elif found != FORMAT:
            raise StoreError("/", reason=f"{path} has format {found}; this version reads format {FORMAT}")
        counters: dict[str, int] = dict(database.execute("SELECT name, value FROM counter").fetchall())
        tree = Tree()
        rows = database.execute(
            "SELECT path, data, czxid, mzxid, version, created, ephemeral_owner FROM node"
        ).fetchall()
        tree.load((row[0], Record(*row[1:])) for row in rows)
    except (sqlite3.Error, ValueError) as error:
        database.close()
        in_use = " (another process has it open)" if "locked" in str(error) else ""
        raise StoreError("/", reason=f"{path} can't be opened: {error}{in_use}") from error
    except BaseException:
        database.close()
        raise
    return _Content(database, tree, counters["zxid"], counters["session"] + 1)


def read_node(path: str | os.PathLike[str], node: str) -> bytes:
    """For tools: one node's data from a store that is not in use, which stays as it is. OSError where it can't be."""
    import sqlite3

    with _reading(path) as database:
        try:
            row = database.execute("SELECT data FROM node WHERE path = ?", (node,)).fetchone()
        except sqlite3.Error as error:
            raise OSError(f"{os.fspath(path)} can't be read: {error}") from error
    if row is None:
        raise OSError(f"{os.fspath(path)} has no node {node}")
    return bytes(row[0] or b"")


def read_nodes(path: str | os.PathLike[str]) -> list[tuple[str, Record]]:
    """For tools: all nodes of a store that is not in use, sorted by path. OSError where they can't be read."""
    import sqlite3

    columns = "path, data, czxid, mzxid, version, created, ephemeral_owner"
    with _reading(path) as database:
        try:
            rows = database.execute(f"SELECT {columns} FROM node ORDER BY path").fetchall()
        except sqlite3.Error as error:
            raise OSError(f"{os.fspath(path)} can't be read: {error}") from error
    return [(row[0], Record(*row[1:])) for row in rows]


def write_nodes(path: str | os.PathLike[str], nodes: Mapping[str, Record], zxid: int) -> None:
    """For tools: a new store with these nodes, parents first; `zxid` is above all of theirs. OSError."""
    import sqlite3

    if os.path.exists(path):
        raise FileExistsError(f"{os.fspath(path)} exists")
    try:
        database = sqlite3.connect(path, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous=FULL")
            _create_tables(database)
            _commit(database, dict(nodes), zxid, 0)
        finally:
            database.close()
    except sqlite3.Error as error:
        raise OSError(f"{os.fspath(path)} can't be written: {error}") from error


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing. OSError."""
    import sqlite3
    from urllib.parse import quote

    try:
        database = sqlite3.connect(f"file:{quote(os.fspath(path))}?mode=ro", timeout=0, uri=True)
    except sqlite3.Error as error:
        raise OSError(f"{os.fspath(path)} can't be read: {error}") from error
    try:
        yield database
    finally:
        database.close()


def _create_tables(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("BEGIN EXCLUSIVE")
    database.execute(_SCHEMA)
    database.execute("CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID")
    database.execute("INSERT INTO counter VALUES ('zxid', 0), ('session', 0)")
    database.execute(f"PRAGMA user_version={FORMAT}")
    database.execute("COMMIT")


def _commit(database: sqlite3.Connection, changes: dict[str, Record | None], zxid: int, session: int) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        database.executemany(
            "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((path, *record) for path, record in changes.items() if record is not None),
        )
        database.executemany(
            "DELETE FROM node WHERE path = ?", ((path,) for path, record in changes.items() if record is None)
        )
        database.executemany("UPDATE counter SET value = ? WHERE name = ?", ((zxid, "zxid"), (session, "session")))
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
