"""`pybroker metadata export` and `import`: between the embedded metadata store and a file or a ZooKeeper."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.broker.cli import add_settings, load_settings

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.controller.tree_dump import TreeNode

OK = 0
FAILED = 1
ZOOKEEPER = "zk://"
MOST_NAMED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions of `pybroker metadata`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    export = actions.add_parser("export", help="write the embedded store to a file or a ZooKeeper")
    export.set_defaults(run=_export)
    export.add_argument(
        "target", metavar="FILE|zk://HOST:PORT/CHROOT", help="where to; - is the standard output. No broker may run"
    )
    add_settings(export)
    take = actions.add_parser("import", help="make a new embedded store from a file or a ZooKeeper")
    take.set_defaults(run=_import)
    take.add_argument("source", metavar="FILE|zk://HOST:PORT/CHROOT", help="a file that export wrote, - or a ZooKeeper")
    take.add_argument(
        "--broker-id", type=int, metavar="N", help="whose log directories are here; partitions become its alone"
    )
    take.add_argument("--replace", action="store_true", help="put an existing store aside")
    add_settings(take)


def store_path(config: BrokerConfig) -> Path:
    """Where the broker of these settings has its embedded store."""
    from pybroker.controller.embedded_store import FILE_NAME

    return Path(config.opt_str("metadata.dir") or config.log_dirs[0]) / FILE_NAME


def _export(arguments: argparse.Namespace) -> int:
    config = load_settings(arguments)
    if config is None:
        return FAILED
    from pybroker.controller.embedded_store import read_nodes
    from pybroker.controller.tree_dump import TreeError, TreeNode, write_tree

    try:
        nodes = [
            TreeNode(path, each.data, each.version, each.czxid, each.mzxid, each.created, each.ephemeral_owner != 0)
            for path, each in read_nodes(store_path(config))
        ]
        if arguments.target.startswith(ZOOKEEPER):
            return _export_to_zookeeper(arguments.target, nodes)
        if arguments.target == "-":
            count = write_tree(nodes, sys.stdout)
        else:
            with open(arguments.target, "x", encoding="utf-8") as file:
                count = write_tree(nodes, file)
    except (OSError, TreeError) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return FAILED
    print(f"{count} nodes", file=sys.stderr)
    return OK


def _export_to_zookeeper(target: str, nodes: list[TreeNode]) -> int:
    from pybroker.controller.tree_zookeeper import write_zookeeper

    persistent = {node.path: node.data for node in nodes if not node.ephemeral}
    written = write_zookeeper(target.removeprefix(ZOOKEEPER), persistent)
    print(f"{written.created} nodes created, {written.changed} changed, {written.deleted} deleted with what was below")
    return OK


def _import(arguments: argparse.Namespace) -> int:
    config = load_settings(arguments)
    if config is None:
        return FAILED
    from pybroker.controller.tree_dump import TreeError
    from pybroker.storage.meta_properties import WrongDirectory

    try:
        return _import_into(config, arguments)
    except (OSError, TreeError, WrongDirectory) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return FAILED


def _import_into(config: BrokerConfig, arguments: argparse.Namespace) -> int:
    from pybroker.controller.embedded_store import write_nodes
    from pybroker.controller.tree_dump import TreeError
    from pybroker.controller.tree_import import prepare
    from pybroker.storage.tools.verify import lock

    directories = [Path(entry).absolute() for entry in config.log_dirs]
    path = store_path(config)
    for directory in (path.parent, *directories):
        directory.mkdir(parents=True, exist_ok=True)
    held = lock(directories)
    broker_id, cluster_id = _identity(config, directories)
    if arguments.broker_id is not None:
        broker_id = arguments.broker_id
    prepared = prepare(_nodes(arguments.source), broker_id)
    if cluster_id not in (None, prepared.cluster_id):
        raise TreeError(
            f"the tree is that of cluster {prepared.cluster_id}, but {directories[0]} belongs to {cluster_id}"
        )
    if path.exists():
        if not arguments.replace:
            print(f"pybroker: {path} exists; --replace puts it aside", file=sys.stderr)
            return FAILED
        _put_aside(path)
    write_nodes(path, prepared.records, prepared.zxid)
    for each in held:
        each.release()
    print(f"{prepared.topics} topics with {prepared.partitions} partitions are in {path} now")
    if prepared.elsewhere:
        named = ", ".join(prepared.elsewhere[:MOST_NAMED]) + (", ..." if len(prepared.elsewhere) > MOST_NAMED else "")
        print(f"warning: {len(prepared.elsewhere)} partitions had no replica on the broker and begin empty: {named}")
    return OK


def _identity(config: BrokerConfig, directories: list[Path]) -> tuple[int | None, str | None]:
    """(broker id, cluster id) of the log directories and settings, None where they don't say. WrongDirectory."""
    from pybroker.storage.meta_properties import cluster_id_of, read_meta_properties

    found = [read_meta_properties(directory) for directory in directories]
    configured = config.int("broker.id")
    if configured >= 0:
        return configured, cluster_id_of(found)
    ids = [each.broker_id for each in found if each is not None and each.broker_id is not None]
    return next(iter(ids), None), cluster_id_of(found)


def _nodes(source: str) -> list[TreeNode]:
    from pybroker.controller.tree_dump import read_tree

    if source.startswith(ZOOKEEPER):
        from pybroker.controller.tree_zookeeper import read_zookeeper

        return read_zookeeper(source.removeprefix(ZOOKEEPER))
    with nullcontext(sys.stdin) if source == "-" else open(source, encoding="utf-8") as file:
        return read_tree(file, source)


def _put_aside(path: Path) -> None:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("-wal", "-shm", ""):
        old = Path(f"{path}{suffix}")
        if old.exists():
            os.replace(old, f"{path}.{stamp}{suffix}")
