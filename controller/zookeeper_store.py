"""The metadata store of a cluster: ZooKeeper, through kazoo. See `store` for what it promises.

Calls go out in the order in which they were made, many before the first is answered. When the connection breaks they
wait for the next one of the same session. Then reads are asked again; writes whose answer was lost are settled first:
the nodes are read and tell whether they happened (`zookeeper_settle`), those that did not are sent again. Nothing is
repeated in another session: when ZooKeeper says that the session has expired, every call under way fails with
SessionExpired, all watches are gone, and a new session starts by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kazoo import exceptions as kazoo
from kazoo.protocol import serialization as wire
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from pybroker.controller.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    MultiResult,
    NoChildrenForEphemerals,
    NodeExists,
    NodeStat,
    NoNode,
    NotEmpty,
    Op,
    Result,
    SessionExpired,
    SessionState,
    SetData,
    StoreClosed,
    StoreError,
    Watch,
    WatchEvent,
    WatchType,
)
from pybroker.controller.zookeeper_session import Session, SessionEvent, ZooKeeperSettings
from pybroker.controller.zookeeper_settle import LostWrite, Node, Scene, judge

logger = logging.getLogger(__name__)
# kazoo tells of every attempt to connect; what matters of it is told here.
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)

#: A call that was lost with so many connections is given up: it may be what breaks them (too large, for instance).
MAX_LOSSES = 5
CLOSE_SECONDS = 5.0
#: How long to wait with a new connection thread after one gave up.
REOPEN_SECONDS = 1.0

_ERRORS: dict[type[Exception], type[StoreError]] = {
    kazoo.NoNodeError: NoNode,
    kazoo.NodeExistsError: NodeExists,
    kazoo.BadVersionError: BadVersion,
    kazoo.NotEmptyError: NotEmpty,
    kazoo.NoChildrenForEphemeralsError: NoChildrenForEphemerals,
    kazoo.SessionExpiredError: SessionExpired,
    kazoo.ConnectionClosedError: StoreClosed,
}
_REASONS: dict[type[Exception], str] = {
    kazoo.NoAuthError: "the node's ACL does not permit it",
    kazoo.InvalidACLError: "zookeeper.set.acl needs a connection that is authenticated (SASL)",
    kazoo.AuthFailedError: "ZooKeeper refused our credentials",
}
#: The other operations of a multi that was refused.
_BYSTANDERS = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)
_WATCH_TYPES: dict[str, WatchType] = {
    "CREATED": "created",
    "CHANGED": "changed",
    "DELETED": "deleted",
    "CHILD": "child",
}

# With zookeeper.set.acl the creator may do everything and the others may read, but not what holds secrets
# (Kafka: ZkData.defaultAcls). Old consumers write below /consumers.
_OPEN_PATHS = ("/consumers",)
_SECRET_PATHS = ("/config/users", "/config/brokers", "/delegation_token/tokens")


class _Call:
    """A request from its making to its answer. kazoo calls `set` or `set_exception` in the connection thread."""

    __slots__ = ("future", "losses", "ops", "path", "probe", "read", "request", "session", "store", "watch", "zxid")

    def __init__(
        self,
        store: ZooKeeperStore,
        path: str,
        request: Any,
        read: Callable[[Any], Any],
        *,
        ops: tuple[Op, ...] = (),
        watch: Watch | None = None,
    ) -> None:
        self.store = store
        self.path = path
        self.request = request
        self.read = read
        self.ops = ops
        self.watch = watch
        self.probe = False
        self.losses = 0
        self.zxid = 0
        self.session: Session | None = None
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def set(self, value: Any = None) -> None:
        session = self.session
        assert session is not None
        if self.watch is not None:
            session.note_absent(self.request, value is not None)
        session.handler.post(self.store._answered, self, value, None)

    def set_exception(self, error: Exception) -> None:
        assert self.session is not None
        self.session.handler.post(self.store._answered, self, None, error)

    def succeed(self, result: Any) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: StoreError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # who has given up waiting needs no warning


class ZooKeeperStore:
    """A MetadataStore on ZooKeeper. Made by `ZooKeeperStore.connect`."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self._root = settings.chroot
        self._loop = asyncio.get_running_loop()
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._callbacks: list[Callable[[SessionState], None]] = []
        # Where a call is: waiting to be sent, sent, or lost with a connection. Each in the order of the calls.
        self._waiting: deque[_Call] = deque()
        self._sent: deque[_Call] = deque()
        self._lost: list[_Call] = []
        self._probes: deque[_Call] = deque()
        self._connection = 0
        self._session_id = 0
        self._pump_due = False
        self._settling: asyncio.Task[None] | None = None
        self._closed = False
        self._ready = False
        self._session = self._open_session()

    @classmethod
    async def connect(cls, settings: ZooKeeperSettings) -> ZooKeeperStore:
        """A store whose session has started; the chroot is made where it is missing. Raises StoreError when ZooKeeper
        can't be reached within the connection timeout, or refuses us."""
        store = cls(settings)
        try:
            await asyncio.wait_for(store._make_root(), settings.connection_timeout_ms / 1000)
        except TimeoutError:
            await store.close()
            failure = store._session.handler.failure
            raise StoreError(
                "/",
                reason=f"ZooKeeper at {settings.hosts} did not answer within {settings.connection_timeout_ms} ms"
                f"{f' ({failure})' if failure else ''}; is it running, and is zookeeper.connect right?",
            ) from None
        except BaseException:
            await store.close()
            raise
        store._ready = True
        return store

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def connected(self) -> bool:
        """Whether there is a connection to ZooKeeper at the moment."""
        return self._connection != 0

    # Reads

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        found: tuple[bytes, NodeStat] = await self._get(path, watch)
        return found

    async def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[tuple[bytes, NodeStat] | None]:
        calls = [self._get(path, watch) for path in paths]
        found: list[tuple[bytes, NodeStat] | None] = []
        for call in calls:
            try:
                found.append(await call)
            except NoNode:
                found.append(None)
        return found

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        request = wire.Exists(self._full(path), self._watcher(watch))
        found: NodeStat | None = await self._call(_Call(self, path, request, _optional_stat, watch=watch))
        return found

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        found: list[str] = await self._children(path, watch)
        return found

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
        op = Create(path, data, ephemeral, sequential)
        try:
            (created,) = await self.multi([op])
        except NoNode:
            if not parents:
                raise
            try:
                await self.create(path.rpartition("/")[0], parents=True)
            except NodeExists:
                pass  # another broker made it meanwhile, which is all we want
            (created,) = await self.multi([op])
        assert isinstance(created, str)
        return created

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> NodeStat:
        (stat,) = await self.multi([SetData(path, data, version)])
        assert isinstance(stat, NodeStat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> list[Result]:
        results: list[Result] = await self._write(ops)
        return results

    async def multi_many(self, transactions: Sequence[Sequence[Op]]) -> list[MultiResult]:
        calls = [self._write(ops) for ops in transactions]
        results: list[MultiResult] = []
        for call in calls:
            try:
                results.append(await call)
            except (SessionExpired, ConnectionLost, StoreClosed):
                raise
            except StoreError as refusal:
                results.append(refusal)
        return results

    async def delete_recursive(self, path: str) -> None:
        levels = [[path]]
        while levels[-1]:
            calls = [(parent, self._children(parent, None)) for parent in levels[-1]]
            below: list[str] = []
            for parent, call in calls:
                try:
                    below += [f"{parent.rstrip('/')}/{name}" for name in await call]
                except NoNode:
                    continue
            levels.append(below)
        for nodes in reversed(levels):
            for result in await self.multi_many([[Delete(node)] for node in nodes]):
                if isinstance(result, StoreError) and not isinstance(result, NoNode):
                    raise result

    def on_session(self, callback: Callable[[SessionState], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._settling is not None:
            self._settling.cancel()
        self._data_watches.clear()
        self._child_watches.clear()
        self._fail_all(StoreClosed)
        reachable = self._connection != 0
        self._connection = 0
        ended = self._session.end()
        deadline = self._loop.time() + (CLOSE_SECONDS if reachable else 0)
        while not ended.is_set() and self._loop.time() < deadline:
            await asyncio.sleep(0.005)

    # From a call to its answer

    def _get(self, path: str, watch: Watch | None) -> asyncio.Future[Any]:
        request = wire.GetData(self._full(path), self._watcher(watch))
        return self._call(_Call(self, path, request, _data_and_stat, watch=watch))

    def _children(self, path: str, watch: Watch | None) -> asyncio.Future[Any]:
        request = wire.GetChildren(self._full(path), self._watcher(watch))
        return self._call(_Call(self, path, request, sorted, watch=watch))

    def _write(self, ops: Sequence[Op]) -> asyncio.Future[Any]:
        requests = [self._request(op) for op in ops]
        path = ops[0].path if ops else "/"
        if len(ops) == 1 and not isinstance(ops[0], Check):
            return self._call(_Call(self, path, requests[0], lambda value: [self._result(value)], ops=tuple(ops)))
        read = partial(self._results, ops)
        return self._call(_Call(self, path, wire.Transaction(requests), read, ops=tuple(ops)))

    def _request(self, op: Op) -> Any:
        path = self._full(op.path)
        match op:
            case Create(_, data, ephemeral, sequential):
                return wire.Create(path, data, self._acl(op.path), ephemeral | sequential << 1)
            case SetData(_, data, version):
                return wire.SetData(path, data, version)
            case Delete(_, version):
                return wire.Delete(path, version)
            case Check(_, version):
                return wire.CheckVersion(path, version)

    def _call(self, call: _Call) -> asyncio.Future[Any]:
        if self._closed:
            raise StoreClosed(call.path)
        (self._probes if call.probe else self._waiting).append(call)
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)  # in the next turn, so that the calls of this one go out together
        return call.future

    def _pump(self) -> None:
        """Send what may be sent: while lost calls are being settled only the reads that this takes."""
        self._pump_due = False
        while self._connection:
            source = self._probes or (self._waiting if not self._lost else self._probes)
            count = min(len(source), self._settings.max_in_flight - len(self._sent))
            if count <= 0:
                return
            batch = [source[index] for index in range(count)]
            session = self._session
            for call in batch:
                call.session = session
                call.zxid = session.last_zxid
            if not session.submit(self._connection, [(call.request, call) for call in batch]):
                self._connection = 0  # it broke; the loop hears of it soon
                return
            for _ in batch:
                self._sent.append(source.popleft())

    def _answered(self, call: _Call, value: Any, error: Exception | None) -> None:
        if not self._sent or self._sent[0] is not call:
            return  # of a session that was given up
        self._sent.popleft()
        if isinstance(error, kazoo.ConnectionLoss):
            self._lose(call)
        elif error is not None:
            call.fail(_refusal(call.path, error))
        else:
            if call.watch is not None:
                watches = self._child_watches if isinstance(call.request, wire.GetChildren) else self._data_watches
                watches.setdefault(call.path, {})[call.watch] = None
            try:
                call.succeed(call.read(value))
            except StoreError as refusal:
                call.fail(refusal)
        self._pump()

    def _lose(self, call: _Call) -> None:
        self._connection = 0
        call.losses += 1
        if call.probe or call.losses >= MAX_LOSSES:
            call.fail(ConnectionLost(call.path, reason="the connection to ZooKeeper broke"))
        else:
            self._lost.append(call)

    async def _settle(self) -> None:
        """The session is back: find out what became of the writes that were lost, and send the rest again."""
        try:
            while self._lost and self._connection:
                lost = self._lost
                try:
                    scene = await self._scene([call for call in lost if call.ops])
                except ConnectionLost:
                    continue  # with the next connection, which may be there already
                except StoreError:
                    return  # the session is over, and with it the calls
                self._lost = []
                self._waiting.extendleft(reversed(_unsettled(lost, scene)))
        finally:
            self._settling = None
        self._pump()

    async def _scene(self, writes: list[_Call]) -> Scene:
        """All nodes that the writes name, as the whole ensemble has them."""
        ops = [op for call in writes for op in call.ops if not isinstance(op, Check)]
        numbered = {op.path: op.path.rpartition("/")[0] for op in ops if isinstance(op, Create) and op.sequential}
        paths = list(dict.fromkeys(op.path for op in ops if op.path not in numbered))
        if not ops:
            return Scene({}, {}, self._session_id)
        await self._probe("/", wire.Sync(self._full("/")), _nothing)
        nodes = await self._probe_nodes(paths)
        candidates: dict[str, dict[str, Node]] = {}
        for path, parent in numbered.items():
            try:
                names = await self._probe(parent, wire.GetChildren(self._full(parent), None), sorted)
            except NoNode:
                names = []
            beside = [f"{parent.rstrip('/')}/{name}" for name in names]
            found = await self._probe_nodes([each for each in beside if each.startswith(path)])
            candidates[path] = {each: node for each, node in found.items() if node is not None}
        return Scene(nodes, candidates, self._session_id)

    async def _probe_nodes(self, paths: Iterable[str]) -> dict[str, Node | None]:
        calls = {path: self._probe(path, wire.GetData(self._full(path), None), _data_and_stat) for path in paths}
        nodes: dict[str, Node | None] = {}
        for path, call in calls.items():
            try:
                nodes[path] = await call
            except NoNode:
                nodes[path] = None
        return nodes

    def _probe(self, path: str, request: Any, read: Callable[[Any], Any]) -> asyncio.Future[Any]:
        call = _Call(self, path, request, read)
        call.probe = True
        return self._call(call)

    # The session

    def _open_session(self) -> Session:
        session = Session(self._settings, _kazoo_logger, self._session_changed)
        session.start_async()
        return session

    async def _make_root(self) -> None:
        """The chroot, as Kafka makes it. Where there is none, a read shows that we are let in."""
        root, self._root = self._root, ""
        try:
            if await self.exists(root or "/") is None:
                await self.create(root, parents=True)
        except NodeExists:
            pass
        finally:
            self._root = root

    def _session_changed(self, session: Session, event: SessionEvent) -> None:
        if session is not self._session or self._closed:
            return
        if event.kind == "connected":
            self._connected(event)
        elif event.kind == "suspended":
            self._connection = 0
            logger.warning("The connection to ZooKeeper is lost; the broker serves on with what it knows")
            self._tell("suspended")
        else:
            self._expired(event)

    def _connected(self, event: SessionEvent) -> None:
        again = event.session_id == self._session_id
        self._connection = event.connection
        self._session_id = event.session_id
        logger.info(
            "%s ZooKeeper at %s (session 0x%x)",
            "Connected again to" if again else "Connected to", self._settings.connect, event.session_id,
        )  # fmt: skip
        if self._lost and self._settling is None:
            self._settling = self._loop.create_task(self._settle(), name="settle lost writes")
        self._tell("connected")
        self._pump()

    def _expired(self, event: SessionEvent) -> None:
        self._connection = 0
        self._data_watches.clear()
        self._child_watches.clear()
        if event.kind == "ended":
            reason = event.reason or "the connection thread ended"
            logger.error("ZooKeeper: %s", reason)
            self._fail_all(SessionExpired if self._ready else StoreError, reason)
            self._loop.call_later(REOPEN_SECONDS, self._reopen, self._session)
        else:
            logger.warning("The session with ZooKeeper (0x%x) has expired", self._session_id)
            self._fail_all(SessionExpired)
        self._tell("expired")

    def _reopen(self, ended: Session) -> None:
        if self._session is ended and not self._closed:
            ended.end()
            self._session = self._open_session()

    def _fail_all(self, kind: type[StoreError], reason: str = "") -> None:
        calls = [*self._lost, *self._sent, *self._probes, *self._waiting]
        self._lost = []
        for queue in (self._sent, self._probes, self._waiting):
            queue.clear()
        for call in calls:
            call.fail(kind(call.path, reason=reason))

    def _tell(self, state: SessionState) -> None:
        for callback in self._callbacks:
            callback(state)

    # Watches

    def _watcher(self, watch: Watch | None) -> Callable[[Any], None] | None:
        """What kazoo is to call: one method for all, so that it remembers each path once."""
        return None if watch is None else self._fired

    def _fired(self, event: Any) -> None:
        kind = _WATCH_TYPES[event.type]
        path = event.path[len(self._root) :] or "/"
        watches: dict[Watch, None] = {}
        if kind != "child":
            watches.update(self._data_watches.pop(path, ()))
        if kind in ("child", "deleted"):
            watches.update(self._child_watches.pop(path, ()))
        for watch in watches:
            try:
                watch(WatchEvent(kind, path))
            except Exception as error:  # one watcher's mistake must not silence the others
                self._loop.call_exception_handler({"message": f"watch on {path} failed", "exception": error})

    # Paths, ACLs, results

    def _full(self, path: str) -> str:
        return (self._root + path).rstrip("/") or "/" if self._root else path

    def _acl(self, path: str) -> Any:
        if not self._settings.set_acl or path in _OPEN_PATHS:
            return OPEN_ACL_UNSAFE
        return CREATOR_ALL_ACL if path.startswith(_SECRET_PATHS) else CREATOR_ALL_ACL + READ_ACL_UNSAFE

    def _results(self, ops: Sequence[Op], values: list[Any]) -> list[Result]:
        """Of a multi. Raises the refusal of the operation that stood in the way."""
        for index, (op, value) in enumerate(zip(ops, values, strict=True)):
            if isinstance(value, Exception) and not isinstance(value, _BYSTANDERS):
                raise _refusal(op.path, value, index)
        return [self._result(value) for value in values]

    def _result(self, value: Any) -> Result:
        if isinstance(value, str):
            return value[len(self._root) :]
        return None if value is True else _stat(value)


def _unsettled(lost: list[_Call], scene: Scene) -> list[_Call]:
    """Answers the writes that have happened and those of which nobody can tell; returns the calls to send again."""
    writes = [call for call in lost if call.ops]
    verdicts = judge([LostWrite(call.ops, call.zxid) for call in writes], scene)
    for call, verdict in zip(writes, verdicts, strict=True):
        if verdict.outcome == "done":
            call.succeed(verdict.results)
        elif verdict.outcome == "unclear":
            call.fail(ConnectionLost(call.path, reason="the write's answer was lost, others have written since"))
    return [call for call in lost if not call.future.done()]


def _refusal(path: str, error: Exception, index: int = 0) -> StoreError:
    kind = _ERRORS.get(type(error), StoreError)
    reason = _REASONS.get(type(error), "")
    if kind is StoreError and not reason:
        reason = f"ZooKeeper answers {type(error).__name__} {error}".strip()
    return kind(path, index, reason)


def _stat(stat: Any) -> NodeStat:
    return NodeStat(stat.czxid, stat.mzxid, stat.version, stat.cversion, stat.ephemeralOwner, stat.numChildren)


def _optional_stat(stat: Any) -> NodeStat | None:
    return None if stat is None else _stat(stat)


def _data_and_stat(value: Any) -> tuple[bytes, NodeStat]:
    data, stat = value
    return data or b"", _stat(stat)


def _nothing(value: Any) -> None:
    return None
