"""A session with ZooKeeper: kazoo's connection thread below, the event loop above.

kazoo hands results to one thread and watch events to another, forgets watches when a connection breaks, and keeps
requests over to the next connection. Here everything reaches the loop through `call_soon_threadsafe` in the order in
which the connection thread saw it: results, watch events, changes of the session. The watches of a lost connection are
set again (ZooKeeper's SetWatches) before anything else is asked over the next one, so that a change in between is told
before a read can show it. And a request belongs to one connection: `submit` names it, and takes nothing once it broke.

Imported only where zookeeper.connect is set.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Exists, write_string
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

#: The longest wait between two attempts to connect.
RETRY_MAX_SECONDS = 1.0
CONNECT_SECONDS = 10.0
#: Paths in one SetWatches, in bytes: far below jute.maxbuffer, 1 MiB (128 KiB as in ZooKeeper's own client).
WATCHES_AT_ONCE = 128 * 1024


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """How to reach ZooKeeper. `connect` is HOST:PORT,HOST:PORT.../CHROOT, times are milliseconds, `sasl` is user and
    password for DIGEST-MD5, `max_in_flight` the requests sent before the first is answered."""

    connect: str
    session_timeout_ms: int = 18_000
    connection_timeout_ms: int = 18_000
    max_in_flight: int = 512
    set_acl: bool = False
    sasl: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None

    @property
    def hosts(self) -> str:
        return ",".join(host.strip() for host in self.connect.partition("/")[0].split(","))

    @property
    def chroot(self) -> str:
        """Empty, or a path without a slash at its end."""
        path = self.connect.partition("/")[2].strip().strip("/")
        return f"/{path}" if path else ""


class SessionEvent(NamedTuple):
    """`connection` and `session_id` come with "connected". "ended" is a connection thread that gave up: the server
    refused our credentials, or kazoo failed."""

    kind: Literal["connected", "suspended", "expired", "ended"]
    connection: int = 0
    session_id: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SetWatches:
    """Sets the watches of the connection before; those that a change after `zxid` would have fired, fire at once.
    `paths` are of watches on data, on nodes that were not there, and on children."""

    zxid: int
    paths: tuple[list[str], list[str], list[str]]

    type: ClassVar[int] = 101

    def serialize(self) -> bytes:
        parts = [struct.pack("!q", self.zxid)]
        for paths in self.paths:
            parts.append(struct.pack("!i", len(paths)))
            parts += [write_string(path) for path in paths]
        return b"".join(parts)

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> None:
        return None


class SessionTimeout(Exception):
    """kazoo's name for a socket that stays silent."""


class LoopHandler:
    """What kazoo wants from a threading model: one thread for the connection, all callbacks on the event loop."""

    name = "pybroker"
    timeout_exception = SessionTimeout
    sleep_func = staticmethod(time.sleep)
    event_object = staticmethod(threading.Event)
    lock_object = staticmethod(threading.Lock)
    rlock_object = staticmethod(threading.RLock)
    create_socket_pair = staticmethod(socket.socketpair)

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None) -> None:
        self._loop = loop
        self._tls = tls
        self.running = False
        self.failure = ""
        """Why the last attempt to connect failed."""

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def spawn(self, function: Callable[..., object], *args: Any, **named: Any) -> threading.Thread:
        thread = threading.Thread(target=function, args=args, kwargs=named, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Call back on the loop; nothing happens once it has ended."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self.running = False

    def dispatch_callback(self, callback: Any) -> None:
        self.post(callback.func, *callback.args)

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> socket.socket:
        seconds = min(timeout or CONNECT_SECONDS, CONNECT_SECONDS)
        plain: socket.socket | None = None
        try:
            plain = socket.create_connection(address, seconds)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=hostname)
        except BaseException as error:
            self.failure = f"{address[0]}:{address[1]}: {error}"
            if plain is not None:
                plain.close()
            raise

    @staticmethod
    def select(
        reading: Sequence[Any], writing: Sequence[Any], _: object, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As select.select, for any number of files; what TLS has read ahead counts as readable."""
        ahead = [each for each in reading if isinstance(each, ssl.SSLSocket) and each.pending()]
        poll = select.poll()
        for each in reading:
            poll.register(each, select.POLLIN)
        for each in writing:
            poll.register(each, select.POLLOUT)
        wait = 0 if ahead else None if timeout is None else max(timeout, 0) * 1000
        found = {number for number, _ in poll.poll(wait)}
        readable = [each for each in reading if each in ahead or each.fileno() in found]
        return readable, [each for each in writing if each.fileno() in found], []


class Session(KazooClient):  # type: ignore[misc]
    """One ZooKeeper session after the other, until `end`. Callbacks come on the loop."""

    def __init__(
        self,
        settings: ZooKeeperSettings,
        logger: logging.Logger,
        on_event: Callable[[Session, SessionEvent], object],
    ) -> None:
        self._on_event = on_event
        self._gate = threading.Lock()
        self._connection_open = 0
        self._connections = 0
        self._absent: set[str] = set()
        handler = LoopHandler(asyncio.get_running_loop(), settings.tls)
        options = None
        if settings.sasl is not None:
            user, password = settings.sasl
            options = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
        super().__init__(
            hosts=settings.hosts,
            timeout=settings.session_timeout_ms / 1000,
            handler=handler,
            sasl_options=options,
            use_ssl=settings.tls is not None,
            connection_retry=KazooRetry(max_tries=-1, max_delay=RETRY_MAX_SECONDS, sleep_func=LoopHandler.sleep_func),
            logger=logger,
        )

    # On the loop

    def submit(self, connection: int, entries: Sequence[tuple[Any, Any]]) -> bool:
        """Send requests over this connection, each with who gets its answer (`set`, `set_exception`, both called in
        the connection thread). False, and nothing is sent, when it is gone."""
        with self._gate:
            if connection != self._connection_open:
                return False
            self._queue.extend(entries)
        self._wake(len(entries))
        return True

    def end(self) -> threading.Event:
        """Close the session; the event is set when the server has confirmed it or can't be reached."""
        with self._gate:
            self._connection_open = 0
        ended = threading.Event()

        def stop() -> None:
            try:
                self.stop()
                self.close()
            except KazooException as error:
                self.logger.error("The connection to ZooKeeper is left open: %s", error)
            finally:
                ended.set()

        self.handler.spawn(stop)
        return ended

    # In the connection thread

    def note_absent(self, request: Any, found: bool) -> None:
        """Told of the answer to every request with a watch: a node that is not there is watched in another way."""
        if not found and isinstance(request, Exists):
            self._absent.add(request.path)
        else:
            self._absent.discard(request.path)

    def _session_callback(self, state: str) -> None:
        """kazoo: the state of connection or session changes."""
        before = self._state
        if state == before:
            return
        connected = state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO)
        if not connected:
            with self._gate:
                self._connection_open = 0
        super()._session_callback(state)  # which fails all that is under way
        if connected:
            self._watch_again()
            with self._gate:
                self._connections += 1
                self._connection_open = self._connections
            self._report(SessionEvent("connected", self._connections, self._session_id))
        elif state == KeeperState.EXPIRED_SESSION:
            self._report(SessionEvent("expired"))
        elif state == KeeperState.CONNECTING:
            if before not in CLOSED_STATES:
                self._report(SessionEvent("suspended"))
        else:
            refused = state == KeeperState.AUTH_FAILED
            self._report(SessionEvent("ended", reason="ZooKeeper refused our credentials" if refused else ""))

    def _reset_watchers(self) -> None:
        """kazoo: forget all watches. They last as long as the session, not as a connection."""
        if self._state != KeeperState.CONNECTING:
            self._child_watchers: Any = defaultdict(set)
            self._data_watchers: Any = defaultdict(set)
            self._absent.clear()

    def _watch_again(self) -> None:
        """Put SetWatches before all that is asked over the new connection."""
        kinds: list[list[str]] = [
            [path for path, watchers in self._data_watchers.items() if watchers and path not in self._absent],
            [path for path, watchers in self._data_watchers.items() if watchers and path in self._absent],
            [path for path, watchers in self._child_watchers.items() if watchers],
        ]
        requests: list[SetWatches] = []
        size = WATCHES_AT_ONCE
        for kind, paths in enumerate(kinds):
            for path in paths:
                if size >= WATCHES_AT_ONCE:
                    requests.append(SetWatches(self.last_zxid, ([], [], [])))
                    size = 0
                requests[-1].paths[kind].append(path)
                size += len(path) + 4
        self._queue.extendleft((request, None) for request in reversed(requests))
        self._wake(len(requests))

    def _wake(self, count: int) -> None:
        """The connection thread sends one request for each byte that it reads here."""
        waker = self._connection._write_sock
        if count and waker is not None:
            waker.send(b"\0" * count)

    def _report(self, event: SessionEvent) -> None:
        self.handler.post(self._on_event, self, event)
