"""Whole trees out of a ZooKeeper, and into one that no broker uses at the moment.

Directly through kazoo, since it is for the command line: nothing else goes on meanwhile, and nothing is watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from pybroker.controller import paths
from pybroker.controller.tree_dump import TreeError, TreeNode
from pybroker.controller.tree_import import is_passing

READ_AT_ONCE = 500  # requests that wait for ZooKeeper's answers
TIMEOUT_SECONDS = 20.0

#: What is below these, and not in the tree that is written, has been deleted there.
_WHOLE = (paths.TOPICS, *(paths.config_root(each) for each in ("topics", "brokers", "clients", "users", "ips")))
#: The brokers settle these among themselves.
_LEFT_ALONE = frozenset({"/", paths.FEATURE, paths.CLUSTER_ID})


class Written(NamedTuple):
    """Numbers of nodes."""

    created: int
    changed: int
    deleted: int


def read_zookeeper(address: str) -> list[TreeNode]:
    """The tree below HOST:PORT,.../chroot. TreeError."""
    with _connected(address) as (client, root):
        if root and client.exists(root) is None:
            raise TreeError(f"zk://{address}: there is no node {root}")
        return list(_walk(client, root))


def write_zookeeper(address: str, nodes: Mapping[str, bytes | None]) -> Written:
    """Make the tree below HOST:PORT,.../chroot say what `nodes` do, parents first. TreeError, also while brokers run.

    What is there has to be the same cluster's; an empty tree will do.
    """
    with _connected(address) as (client, root):
        if root:
            client.ensure_path(root)
        there = {node.path: node for node in _walk(client, root)}
        _check(address, there, nodes)
        created = changed = deleted = 0
        for path, data in nodes.items():
            if is_passing(path) or (path in _LEFT_ALONE and path in there) or path == "/":
                continue
            if path not in there:
                client.create(root + path, data or b"")
                created += 1
            elif (there[path].data or b"") != (data or b""):
                client.set(root + path, data or b"")
                changed += 1
        for path in _gone(there, nodes):
            client.delete(root + path, recursive=True)
            deleted += 1
        return Written(created, changed, deleted)


def _check(address: str, there: Mapping[str, TreeNode], nodes: Mapping[str, bytes | None]) -> None:
    running = [path for path in there if path.startswith(f"{paths.BROKER_IDS}/")]
    if running or paths.CONTROLLER in there:
        raise TreeError(f"zk://{address}: a broker is running ({', '.join(running) or paths.CONTROLLER})")
    found = there.get(paths.CLUSTER_ID)
    if found is not None and found.data != nodes.get(paths.CLUSTER_ID):
        raise TreeError(f"zk://{address}: this is another cluster's, see {paths.CLUSTER_ID}")


def _gone(there: Mapping[str, TreeNode], nodes: Mapping[str, bytes | None]) -> Iterator[str]:
    """The topmost nodes of what is there and no longer ought to be."""
    for path in there:
        parent = path.rpartition("/")[0]
        if path not in nodes and parent in nodes and path.startswith(tuple(f"{each}/" for each in _WHOLE)):
            yield path


@contextmanager
def _connected(address: str) -> Iterator[tuple[Any, str]]:
    """A client and the chroot (empty, or a path). TreeError for whatever ZooKeeper refuses."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    hosts, _, chroot = address.partition("/")
    root = f"/{chroot.strip('/')}" if chroot.strip("/") else ""
    client = KazooClient(hosts=hosts, timeout=TIMEOUT_SECONDS)
    try:
        client.start(TIMEOUT_SECONDS)
        yield client, root
    except (KazooTimeoutError, KazooException, OSError) as error:
        raise TreeError(f"zk://{address}: {type(error).__name__} {error}") from error
    finally:
        client.stop()
        client.close()


def _walk(client: Any, root: str) -> Iterator[TreeNode]:
    """Parents before children, many at once."""
    level = [""]
    while level:
        below: list[str] = []
        for start in range(0, len(level), READ_AT_ONCE):
            some = level[start : start + READ_AT_ONCE]
            gets = [client.get_async(root + path or "/") for path in some]
            lists = [client.get_children_async(root + path or "/") for path in some]
            for path, get, listing in zip(some, gets, lists, strict=True):
                data, stat = get.get()
                names = [name for name in sorted(listing.get()) if path or root or name != "zookeeper"]
                below += [f"{path}/{name}" for name in names]
                made = (stat.cversion + stat.numChildren) // 2
                yield TreeNode(
                    path or "/", data or None, stat.version, stat.czxid, stat.mzxid, made, bool(stat.ephemeralOwner)
                )
        level = below
