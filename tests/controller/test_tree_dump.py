"""Trees as files, and out of a real ZooKeeper."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pybroker.controller.tree_dump import TreeError, TreeNode, read_tree, read_zookeeper, write_tree
from tests.support.zookeeper import ZooKeeperServer, free_port, need_zookeeper

NODES = [
    TreeNode("/", None, 0, 0, 0, 2),
    TreeNode("/a", b"", 3, 5, 9, 0),
    TreeNode("/b", '{"ü":1}'.encode(), 1, 6, 6, 7),
    TreeNode("/b/c", b"\xff\x00", 0, 7, 7, 0, True),
]


def test_a_file_gives_back_what_was_written() -> None:
    file = io.StringIO()
    assert write_tree(NODES, file) == 4
    assert len(file.getvalue().splitlines()) == 6
    assert read_tree(io.StringIO(file.getvalue()), "x") == NODES
    empty = io.StringIO()
    write_tree([], empty)
    assert read_tree(io.StringIO(empty.getvalue()), "x") == []


def test_the_children_made_come_from_zookeepers_cversion() -> None:
    rows = '[{"path": "/a", "text": "x", "cversion": 5}, {"path": "/a/b", "data": null}]'
    first, second = read_tree(io.StringIO(rows), "x")
    assert first == TreeNode("/a", b"x", children_made=3)  # three made, two of them gone
    assert second == TreeNode("/a/b", None)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"nodes": 1}', "{}", '[{"text": "no path"}]', '[{"path":"/","base64":"?"}]']
)
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(TreeError, match=r"f\.json is no tree of metadata"):
        read_tree(io.StringIO(text), "f.json")


def test_out_of_a_zookeeper(tmp_path: Path) -> None:
    need_zookeeper()
    from kazoo.client import KazooClient

    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        client = KazooClient(server.address)
        client.start(20)
        client.create("/kafka/cluster/id", b"{}", makepath=True)
        client.set("/kafka/cluster/id", b"[]")
        for number in range(1200):
            client.create_async(f"/kafka/n{number}", b"%d" % number)
        client.create("/kafka/e", ephemeral=True)
        client.delete("/kafka/n0")
        nodes = {node.path: node for node in read_zookeeper(f"{server.address}/kafka")}
        assert len(nodes) == 1203
        assert nodes["/cluster/id"][1:3] == (b"[]", 1)
        assert nodes["/n77"].data == b"77"
        assert nodes["/n77"].czxid > 0
        assert nodes["/"].children_made == 1202
        assert nodes["/e"].ephemeral
        whole = {node.path for node in read_zookeeper(server.address)}
        assert "/kafka/cluster/id" in whole
        assert not any(path.startswith("/zookeeper") for path in whole)
        with pytest.raises(TreeError, match="there is no node /other"):
            read_zookeeper(f"{server.address}/other")
        client.stop()


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybroker.controller.tree_dump.TIMEOUT_SECONDS", 0.5)
    with pytest.raises(TreeError, match="can't be read"):
        read_zookeeper(f"127.0.0.1:{free_port()}")
