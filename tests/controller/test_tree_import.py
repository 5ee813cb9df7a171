"""Recorded trees of Kafka clusters become those of a broker with a store of its own."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from pybroker.controller import paths
from pybroker.controller.embedded_store import EmbeddedStore, read_node, read_nodes, write_nodes
from pybroker.controller.tree_dump import TreeError, TreeNode, read_tree
from pybroker.controller.tree_import import Import, prepare
from tests.support import disk

TREES = Path(__file__).resolve().parent.parent / "data" / "zookeeper"


def recorded(name: str) -> list[TreeNode]:
    with lzma.open(TREES / f"{name}.json.xz", "rt", encoding="utf-8") as file:
        return read_tree(file, name)


def whole_dir(tmp_path: Path) -> list[TreeNode]:
    facts, _ = disk.unpack("whole-dir-clean", tmp_path)
    path = tmp_path / "tree.json"
    path.write_text(json.dumps(facts["zookeeper"]))
    with path.open() as file:
        return read_tree(file, "tree.json")


def state(found: Import, topic: str, index: int = 0) -> paths.LeaderAndIsr:
    record = found.records[paths.partition_state(topic, index)]
    return paths.decode_partition_state(record.data or b"", record.version)


def test_one_broker_keeps_its_tree(tmp_path: Path) -> None:
    nodes = whole_dir(tmp_path)
    found = prepare(nodes, None)
    before = {node.path: node for node in nodes}
    assert (found.topics, found.partitions, found.elsewhere) == (20, 22, [])
    for path, record in found.records.items():
        assert (record.data, record.version) == (before[path].data, before[path].version)
        assert record.ephemeral_owner == 0
    gone = set(before) - set(found.records)
    assert all(before[path].ephemeral or path.startswith(paths.CONFIG_CHANGES) for path in gone), gone
    assert found.zxid > max(node.mzxid for node in nodes)


def test_one_brokers_part_of_a_cluster() -> None:
    nodes = recorded("20-all-stopped")
    with pytest.raises(TreeError, match=r"brokers 1, 2, 3, .* say with --broker-id"):
        prepare(nodes, None)
    found = prepare(nodes, 3)
    assert found.cluster_id == "CnqmnODyT8KUjzELHCNf2g"
    assert found.elsewhere == ["t-b-2", "t-b-3", "t-cx-0"]
    assert (found.topics, found.partitions) == (8, 17)
    assert state(found, "t-a", 1) == paths.LeaderAndIsr(3, 13, (3,), 5, 21)
    assert state(found, "t-cx") == paths.LeaderAndIsr(3, 10, (3,), 6, 15)
    topic = paths.decode_topic(found.records[paths.topic("t-b")].data or b"")
    before = paths.decode_topic(next(node.data or b"" for node in nodes if node.path == paths.topic("t-b")))
    assert topic == paths.TopicNode(before.topic_id, {index: [3] for index in range(4)})
    for path in ("/kafka-acl/Topic/t-a", "/config/users/alice", "/config/topics/t-a", "/latest_producer_id_block"):
        assert path in found.records
    for path in (
        "/config/changes/config_change_0000000000",
        "/kafka-acl-changes/acl_changes_0000000000",
        "/controller",
    ):
        assert path not in found.records
    assert found.records["/config/changes"].created == 13


def test_trees_of_older_releases_have_no_topic_ids() -> None:
    nodes = recorded("ibp-2.6-16-after-transactions")
    found = prepare(nodes, 1)
    assert found.topics > 3
    assert paths.decode_topic(found.records[paths.topic("t-a")].data or b"").topic_id is None


def test_what_is_no_clusters_tree_is_refused() -> None:
    with pytest.raises(TreeError, match="has no /cluster/id"):
        prepare([TreeNode("/", None)], 1)
    cluster = TreeNode(paths.CLUSTER_ID, paths.encode_cluster_id("x" * 22))
    with pytest.raises(TreeError, match="/brokers/topics/t: "):
        prepare([cluster, TreeNode("/brokers/topics/t", b"[]")], 1)


async def test_the_store_takes_it(tmp_path: Path) -> None:
    found = prepare(recorded("20-all-stopped"), 3)
    path = tmp_path / "store.db"
    write_nodes(path, found.records, found.zxid)
    assert dict(read_nodes(path)) == found.records
    assert read_node(path, paths.CONTROLLER_EPOCH) == b"6"
    with pytest.raises(FileExistsError):
        write_nodes(path, found.records, found.zxid)
    store = await EmbeddedStore.open(path)
    data, stat = await store.get(paths.topic("t-a"))
    assert paths.decode_topic(data).replicas == {0: [3], 1: [3], 2: [3]}
    assert await store.create("/config/changes/config_change_", sequential=True) == (
        "/config/changes/config_change_0000000013"
    )
    _, stat = await store.get("/config/changes/config_change_0000000013")
    assert stat.czxid > found.zxid
    with pytest.raises(OSError, match="can't be read"):
        read_nodes(path)  # it is in use
    await store.close()
    with pytest.raises(OSError, match="has no node /nothing"):
        read_node(path, "/nothing")
    with pytest.raises(OSError, match="can't be read"):
        read_nodes(tmp_path / "nothing.db")
