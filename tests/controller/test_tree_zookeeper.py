"""Whole trees out of a real ZooKeeper, and into one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.controller import paths
from pybroker.controller.tree_dump import TreeError
from pybroker.controller.tree_zookeeper import Written, read_zookeeper, write_zookeeper
from tests.support.zookeeper import ZooKeeperServer, free_port, need_zookeeper


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
    monkeypatch.setattr("pybroker.controller.tree_zookeeper.TIMEOUT_SECONDS", 0.5)
    with pytest.raises(TreeError, match="KazooTimeoutError"):
        read_zookeeper(f"127.0.0.1:{free_port()}")


def test_into_a_zookeeper(tmp_path: Path) -> None:
    need_zookeeper()
    from kazoo.client import KazooClient

    wanted: dict[str, bytes | None] = {
        "/": None,
        "/brokers": None,
        "/brokers/ids": None,
        "/brokers/topics": None,
        "/brokers/topics/t": b"assignment",
        "/cluster": None,
        paths.CLUSTER_ID: b"id",
        "/config": None,
        "/config/changes": None,
        "/config/changes/config_change_0000000001": b"passing",
        "/config/topics": None,
        "/config/topics/t": b"settings",
        "/feature": b"mine",
    }
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        address = f"{server.address}/a/b"
        assert write_zookeeper(address, wanted) == Written(11, 0, 0)
        assert write_zookeeper(address, wanted) == Written(0, 0, 0)
        client = KazooClient(server.address)
        client.start(20)
        client.create("/a/b/brokers/topics/gone/partitions/0", b"", makepath=True)
        client.create("/a/b/config/topics/gone", b"")
        client.create("/a/b/other", b"stays")
        client.set("/a/b/feature", b"theirs")
        client.set("/a/b/config/topics/t", b"")
        assert write_zookeeper(address, wanted) == Written(0, 1, 2)
        found = {node.path: node.data for node in read_zookeeper(address)}
        expected = wanted | {"/other": b"stays", "/feature": b"theirs"}
        del expected["/config/changes/config_change_0000000001"]
        assert found == expected

        with pytest.raises(TreeError, match="another cluster's"):
            write_zookeeper(address, wanted | {paths.CLUSTER_ID: b"other"})
        client.create("/a/b/brokers/ids/1", b"", ephemeral=True)
        with pytest.raises(TreeError, match="a broker is running"):
            write_zookeeper(address, wanted)
        client.stop()
