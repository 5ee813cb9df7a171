"""The tree of nodes in memory, with ZooKeeper's semantics. No I/O, no clock: the embedded store adds those.

`Tree.apply` runs one transaction and tells which nodes changed, which watch events it causes and how to undo it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pybroker.controller.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    NoChildrenForEphemerals,
    NodeExists,
    NodeStat,
    NoNode,
    NotEmpty,
    Op,
    Result,
    SetData,
    StoreError,
    WatchEvent,
)


class Record(NamedTuple):
    """One node as it is kept on disk. `created` counts the children ever created: the next sequential number."""

    data: bytes | None
    czxid: int
    mzxid: int
    version: int
    created: int
    ephemeral_owner: int


class _Node:
    __slots__ = ("children", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.children: set[str] = set()


class Applied(NamedTuple):
    """A transaction that went through. `before` holds (path, record before or None) in the order of the changes."""

    results: list[Result]
    events: list[WatchEvent]
    before: list[tuple[str, Record | None]]


ROOT_RECORD = Record(None, 0, 0, 0, 0, 0)


def split(path: str) -> tuple[str, str]:
    """Parent and name of an absolute path. Raises ValueError on a malformed one."""
    parent, slash, name = path.rpartition("/")
    if not slash or not name or path[0] != "/":
        raise ValueError(f"malformed node path {path!r}")
    return parent or "/", name


class Tree:
    """Nodes by path. Records come in with `load` in any order and change by `apply` only."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {"/": _Node(ROOT_RECORD)}

    def __len__(self) -> int:
        return len(self._nodes)

    def load(self, records: Iterable[tuple[str, Record]]) -> None:
        """Takes the nodes kept on disk. Raises ValueError when one has no parent."""
        loaded = list(records)
        nodes = self._nodes
        for path, record in loaded:
            if path == "/":
                nodes["/"].record = record
            else:
                nodes[path] = _Node(record)
        for path, _ in loaded:
            if path == "/":
                continue
            parent, name = split(path)
            if parent not in nodes:
                raise ValueError(f"node {path} has no parent")
            nodes[parent].children.add(name)

    def data(self, path: str) -> bytes:
        return self._node(path).record.data or b""

    def record(self, path: str) -> Record | None:
        node = self._nodes.get(path)
        return None if node is None else node.record

    def stat(self, path: str) -> NodeStat:
        return _stat(self._node(path))

    def children(self, path: str) -> list[str]:
        return sorted(self._node(path).children)

    def __contains__(self, path: str) -> bool:
        return path in self._nodes

    def ephemerals(self) -> list[str]:
        return [path for path, node in self._nodes.items() if node.record.ephemeral_owner]

    def below(self, path: str) -> Iterator[str]:
        """The nodes below this one and then itself, leaves first."""
        for name in self.children(path):
            yield from self.below(f"{path.rstrip('/')}/{name}")
        yield path

    def apply(self, ops: Sequence[Op], zxid: int, session: int) -> Applied:
        """Runs one transaction as a whole. Raises the StoreError of the first refused operation, having changed
        nothing."""
        applied = Applied([], [], [])
        for index, op in enumerate(ops):
            try:
                if isinstance(op, Check):
                    self._checked(op.path, op.version)
                    applied.results.append(None)
                elif isinstance(op, Create):
                    self._create(op, zxid, session, applied)
                elif isinstance(op, SetData):
                    self._set(op, zxid, applied)
                else:
                    self._delete(op, applied)
            except StoreError as error:
                error.index = index
                self.undo(applied.before)
                raise
        return applied

    def undo(self, before: list[tuple[str, Record | None]]) -> None:
        """Takes back changes, newest first."""
        nodes = self._nodes
        for path, record in reversed(before):
            node = nodes.get(path)
            if record is None:
                del nodes[path]
                parent, name = split(path)
                nodes[parent].children.discard(name)
            elif node is not None:
                node.record = record
            else:
                nodes[path] = _Node(record)
                parent, name = split(path)
                nodes[parent].children.add(name)

    def _create(self, op: Create, zxid: int, session: int, applied: Applied) -> None:
        parent_path, name = split(op.path)
        parent = self._nodes.get(parent_path)
        if parent is None:
            raise NoNode(op.path)
        if parent.record.ephemeral_owner:
            raise NoChildrenForEphemerals(op.path)
        path = op.path
        if op.sequential:
            suffix = f"{parent.record.created:010d}"
            path, name = path + suffix, name + suffix
        if path in self._nodes:
            raise NodeExists(path)
        applied.before.append((parent_path, parent.record))
        applied.before.append((path, None))
        parent.record = parent.record._replace(created=parent.record.created + 1)
        parent.children.add(name)
        self._nodes[path] = _Node(Record(op.data, zxid, zxid, 0, 0, session if op.ephemeral else 0))
        applied.results.append(path)
        applied.events.append(WatchEvent("created", path))
        applied.events.append(WatchEvent("child", parent_path))

    def _set(self, op: SetData, zxid: int, applied: Applied) -> None:
        node = self._checked(op.path, op.version)
        before = node.record
        applied.before.append((op.path, before))
        node.record = before._replace(data=op.data, mzxid=zxid, version=before.version + 1)
        applied.results.append(_stat(node))
        applied.events.append(WatchEvent("changed", op.path))

    def _delete(self, op: Delete, applied: Applied) -> None:
        node = self._checked(op.path, op.version)
        if node.children:
            raise NotEmpty(op.path)
        parent_path, name = split(op.path)
        applied.before.append((op.path, node.record))
        del self._nodes[op.path]
        self._nodes[parent_path].children.discard(name)
        applied.results.append(None)
        applied.events.append(WatchEvent("deleted", op.path))
        applied.events.append(WatchEvent("child", parent_path))

    def _node(self, path: str) -> _Node:
        try:
            return self._nodes[path]
        except KeyError:
            raise NoNode(path) from None

    def _checked(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if version not in (ANY_VERSION, node.record.version):
            raise BadVersion(path)
        return node


def _stat(node: _Node) -> NodeStat:
    record, children = node.record, len(node.children)
    # As ZooKeeper shows it: children created plus children deleted.
    return NodeStat(
        record.czxid, record.mzxid, record.version, 2 * record.created - children, record.ephemeral_owner, children
    )
