"""A tree of metadata nodes outside a store, as a file.

It is a JSON object whose `nodes` are objects with `path`, `text` (UTF-8) or `base64` or null `data`, and what is known
of `version`, `cversion`, `czxid`, `mzxid`, `ephemeral`. Written with one node a line, parents before children.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import IO, Any, NamedTuple


class TreeNode(NamedTuple):
    """One node. Versions and zxids are 0 where they are not known; `children_made` counts those ever created."""

    path: str
    data: bytes | None
    version: int = 0
    czxid: int = 0
    mzxid: int = 0
    children_made: int = 0
    ephemeral: bool = False


class TreeError(Exception):
    """The tree can't be read; the message says from where and why."""


def write_tree(nodes: Iterable[TreeNode], file: IO[str]) -> int:
    """The number of nodes written. OSError."""
    count = 0
    file.write('{"format":"pybroker metadata","version":1,"nodes":[')
    for node in nodes:
        file.write(",\n" if count else "\n")
        file.write(json.dumps(_plain(node), ensure_ascii=False))
        count += 1
    file.write("\n]}\n")
    return count


def _plain(node: TreeNode) -> dict[str, Any]:
    plain: dict[str, Any] = {"path": node.path}
    try:
        plain |= {"data": None} if node.data is None else {"text": node.data.decode("utf-8")}
    except UnicodeDecodeError:
        assert node.data is not None
        plain["base64"] = base64.b64encode(node.data).decode()
    plain |= {"version": node.version, "czxid": node.czxid, "mzxid": node.mzxid, "childrenMade": node.children_made}
    return plain | {"ephemeral": True} if node.ephemeral else plain


def read_tree(file: IO[str], name: str) -> list[TreeNode]:
    """The nodes of a file, `name` being for messages. TreeError, OSError."""
    try:
        value = json.load(file)
        rows = value["nodes"] if isinstance(value, dict) else value
        children = _count_children(row["path"] for row in rows)
        return [_node(row, children) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TreeError(f"{name} is no tree of metadata: {type(error).__name__} {error}") from None


def _node(row: dict[str, Any], children: dict[str, int]) -> TreeNode:
    path = str(row["path"])
    data: bytes | None = None
    if "base64" in row:
        data = base64.b64decode(row["base64"], validate=True)
    elif row.get("text") is not None:
        data = str(row["text"]).encode()
    made = row.get("childrenMade")
    if made is None:  # ZooKeeper's cversion counts creations and deletions of children
        made = (int(row.get("cversion", 0)) + children.get(path, 0)) // 2
    return TreeNode(
        path,
        data,
        int(row.get("version", 0)),
        int(row.get("czxid", 0)),
        int(row.get("mzxid", 0)),
        int(made),
        bool(row.get("ephemeral", False)),
    )


def _count_children(paths: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for path in paths:
        parent = path.rpartition("/")[0] or "/"
        counts[parent] = counts.get(parent, 0) + 1
    return counts
