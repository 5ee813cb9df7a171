"""The metadata store: a tree of nodes as ZooKeeper has it, behind one asynchronous contract.

The controller and the writers of topics and configurations see only this module. Two stores keep the contract:
`embedded_store` (SQLite, one broker) and the ZooKeeper one. What they promise:

1. A write ends as done or refused (a StoreError that names the reason); ConnectionLost means that the store could not
   find out. Reads and writes of one client take effect in the order in which they were called.
2. What a write's answer or a read has shown survives a power loss.
3. A watch is one-shot. It is called on the event loop before any later read shows the new data, and never for a
   change that the read which set it has already shown.
4. zxids only grow, also across restarts, so a node's czxid can serve as an epoch.

Paths are absolute, data are bytes (null and empty data read the same: b"").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

ANY_VERSION = -1


class NodeStat(NamedTuple):
    """What is known of a node beside its data. `version` counts changes of data, `cversion` changes of children;
    `ephemeral_owner` is the id of the owning session, 0 for a persistent node."""

    czxid: int
    mzxid: int
    version: int
    cversion: int
    ephemeral_owner: int
    num_children: int


class StoreError(Exception):
    """A refused or failed operation on the store. `path` is the node concerned, `index` the operation's place in its
    multi (0 for a single operation)."""

    def __init__(self, path: str, index: int = 0, reason: str = "") -> None:
        super().__init__(f"{type(self).__name__} {path}{': ' if reason else ''}{reason}")
        self.path = path
        self.index = index


class NoNode(StoreError):
    """The node, or the parent of a node to create, does not exist."""


class NodeExists(StoreError):
    """The node to create exists."""


class BadVersion(StoreError):
    """The node's version is not the expected one."""


class NotEmpty(StoreError):
    """The node to delete has children."""


class NoChildrenForEphemerals(StoreError):
    """The parent of the node to create is ephemeral."""


class SessionExpired(StoreError):
    """The session is over: its ephemeral nodes are gone or will be. A new session starts by itself."""


class ConnectionLost(StoreError):
    """The connection broke, and whether the operation happened could not be found out."""


class StoreClosed(StoreError):
    """The store was closed, by us or because it can no longer be written."""


class Create(NamedTuple):
    path: str
    data: bytes | None = None
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    path: str
    data: bytes | None
    version: int = ANY_VERSION


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Refuses its multi unless the node has this version."""

    path: str
    version: int


Op = Create | SetData | Delete | Check
#: Result of one operation: the path of a Create, the new NodeStat of a SetData, None of a Delete or Check.
Result = str | NodeStat | None
#: What many multis sent at once came to, each on its own: its results, or why it was refused as a whole.
MultiResult = list[Result] | StoreError

WatchType = Literal["created", "changed", "deleted", "child"]


class WatchEvent(NamedTuple):
    type: WatchType
    path: str


Watch = Callable[[WatchEvent], None]
SessionState = Literal["connected", "suspended", "expired"]


class MetadataStore(Protocol):
    """See the module's text for the contract. Every method may raise SessionExpired, ConnectionLost or StoreClosed."""

    @property
    def session_id(self) -> int:
        """Owner of the ephemeral nodes that this client creates."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        """Data and stat. Raises NoNode (and sets no watch then)."""

    async def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[tuple[bytes, NodeStat] | None]:
        """As many gets at once; None where there is no node."""

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """The watch is set also where there is no node: it then waits for the creation."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of the children, sorted. Raises NoNode (and sets no watch then)."""

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        """The path created (a sequential node gets ten digits appended). Raises NodeExists, NoNode without the parent
        unless `parents` makes those missing (persistent, null data)."""

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> NodeStat:
        """Raises NoNode, BadVersion."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Raises NoNode, BadVersion, NotEmpty."""

    async def multi(self, ops: Sequence[Op]) -> list[Result]:
        """All or nothing. Raises the error of the first refused operation."""

    async def multi_many(self, transactions: Sequence[Sequence[Op]]) -> list[MultiResult]:
        """Many multis in this order without waiting in between; each stands alone, refusals are returned."""

    async def delete_recursive(self, path: str) -> None:
        """The node and all below it, leaves first; what is missing is no error."""

    def on_session(self, callback: Callable[[SessionState], None]) -> None:
        """Calls back on the event loop when the session's state changes."""

    async def close(self) -> None:
        """Ends the session: its ephemeral nodes go, watches never fire again."""
