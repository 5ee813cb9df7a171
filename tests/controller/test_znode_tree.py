"""The tree that a broker writes into ZooKeeper, held against that of Apache Kafka 3.9.2 after the same steps.

Recorded was a cluster of three brokers; here is one. So replicas, ISRs and leaders are reduced to broker 1, and only
what that leaves comparable is compared: paths, data, versions, null or not, ephemeral or not, ACLs, order of creation.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.broker import BrokerProcess, wait_until
from tests.support.data import DATA
from tests.support.wire import WireClient
from tests.support.zookeeper import ZooKeeperServer

TOPICS = {
    "t-a": (3, {"retention.ms": "86400000"}),
    "t-b": (2, {}),
    "t-del": (2, {}),
    "t-un": (1, {"unclean.leader.election.enable": "false"}),
    "t-mv": (1, {}),
    "t-cx": (1, {}),
}
# Of an authorizer and of delegation tokens, which the recorded brokers had.
ELSEWHERE = ("/kafka-acl", "/delegation_token", "/brokers/ids/2", "/brokers/ids/3")
WORLD = ["world:anyone:rwcda"]


class Shape(NamedTuple):
    """What is compared of a node. `value` is its JSON with what differs by its nature taken out, None for null data."""

    value: Any
    version: int
    ephemeral: bool
    acl: list[str]


def shape(path: str, data: bytes | None, version: int, owner: int, acl: list[str]) -> Shape:
    value: Any = json.loads(data) if data else None
    if isinstance(value, dict):
        for name in ("timestamp", "topic_id", "id", "pybroker", "port"):
            if name in value:
                value[name] = type(value[name]).__name__
        if path.startswith("/brokers/topics/"):
            value = of_one_broker(value)
        if path.startswith("/brokers/ids/"):
            value.pop("pybroker", None)
            value["endpoints"] = [each.rpartition(":")[0] for each in value["endpoints"] if each.startswith("INTERNAL")]
            value["listener_security_protocol_map"] = {"INTERNAL": value["listener_security_protocol_map"]["INTERNAL"]}
    return Shape(value, version, bool(owner), acl)


def of_one_broker(value: dict[str, Any]) -> dict[str, Any]:
    if "partitions" in value:
        return value | {"partitions": {index: [1] for index in value["partitions"]}}
    return value | {"isr": [1], "leader": 1}


def wanted(path: str) -> bool:
    return not path.startswith(ELSEWHERE) and not path.startswith(("/zookeeper", "/brokers/topics/__")) and path != "/"


def recorded(moment: str) -> dict[str, Shape]:
    """Recorded shapes by path, in the order in which the nodes were made."""
    with lzma.open(DATA / "zookeeper" / f"{moment}.json.xz", "rt", encoding="utf-8") as file:
        nodes: list[dict[str, Any]] = json.load(file)["nodes"]
    return {
        node["path"]: shape(
            node["path"], (node.get("text") or "").encode(), node["version"], node["ephemeral"], node["acl"]
        )
        for node in sorted(nodes, key=lambda node: node["czxid"])
        if wanted(node["path"])
    }


def written(server: ZooKeeperServer, chroot: str) -> dict[str, Shape]:
    """The same of what our broker has written."""
    from kazoo.exceptions import NoNodeError

    nodes = sorted(server.tree(chroot).items(), key=lambda node: node[1][1].czxid)
    client = server.client()
    try:
        found = {}
        for path, (data, stat) in nodes:
            if not wanted(path):
                continue
            try:
                acls, _ = client.get_acls(chroot + path)
            except NoNodeError:  # it went meanwhile
                continue
            assert (data is None) == (not data), f"{path} has empty data instead of null"
            names = [f"{each.id.scheme}:{each.id.id}:{'rwcda' if each.perms == 31 else each.perms}" for each in acls]
            found[path] = shape(path, data, stat.version, stat.ephemeralOwner, names)
        return found
    finally:
        client.stop()
        client.close()


class Running(NamedTuple):
    server: ZooKeeperServer
    chroot: str
    client: WireClient

    def tree(self) -> dict[str, Shape]:
        return written(self.server, self.chroot)


@pytest.fixture(scope="module")
def running(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory: Path = tmp_path_factory.mktemp("znodes")
    chroot = f"/znodes{directory}"
    overrides = {
        "zookeeper.connect": f"{zookeeper.address}{chroot}",
        "broker.id": 1,
        "broker.rack": "rack-1",
        "listeners": "INTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
    }
    with BrokerProcess(directory / "data", overrides) as broker, broker.client() as client:
        yield Running(zookeeper, chroot, client)


def below(tree: dict[str, Shape], *prefixes: str) -> dict[str, Shape]:
    return {path: node for path, node in tree.items() if path.startswith(prefixes)}


def same(ours: dict[str, Shape], theirs: dict[str, Shape], *, ordered: bool = True) -> None:
    assert sorted(ours) == sorted(theirs)
    for path, node in theirs.items():
        assert ours[path] == node, path
    if ordered:
        assert list(ours) == list(theirs), "made in this order"


# The tests build on one another: each is the next moment.


def test_first_start(running: Running) -> None:
    same(running.tree(), recorded("01-one-broker"))


def test_topics_created(running: Running) -> None:
    for name, (partitions, configs) in TOPICS.items():
        running.client.create_topic(name, partitions, **configs)
    theirs = recorded("03-topics-created")
    wait_until(lambda: sorted(running.tree()) == sorted(theirs), what="the nodes of all topics")
    ours = running.tree()
    same(ours, theirs, ordered=False)
    for name in TOPICS:
        of_topic = (f"/config/topics/{name}", f"/brokers/topics/{name}")
        assert list(below(ours, *of_topic)) == list(below(theirs, *of_topic)), "made in this order"


def test_settings_changed(running: Running) -> None:
    changes = {
        (2, "t-b"): [("cleanup.policy", 2, "compact"), ("min.insync.replicas", 0, "1")],
        (4, ""): [("log.cleaner.threads", 0, "1")],
    }
    for (kind, name), settings in changes.items():
        configs = [{"Name": each, "ConfigOperation": operation, "Value": value} for each, operation, value in settings]
        resource = {"ResourceType": kind, "ResourceName": name, "Configs": configs}
        (answer,) = running.client.call("IncrementalAlterConfigs", 1, {"Resources": [resource]})["Responses"]
        assert answer["ErrorCode"] == 0, answer
    changed = ("/config/topics", "/config/brokers/<", "/config/changes/config_change_0000000000")
    more = "/config/changes/config_change_0000000001"
    same(
        below(running.tree(), *changed, more),
        below(recorded("04-acls-configs-quotas-scram-token"), *changed, more),
        ordered=False,
    )


def test_partitions_added(running: Running) -> None:
    wanted_topic = {"Name": "t-b", "Count": 4, "Assignments": None}
    answer = running.client.call("CreatePartitions", 1, {"Topics": [wanted_topic], "TimeoutMs": 30000})
    assert answer["Results"][0]["ErrorCode"] == 0, answer
    theirs = below(recorded("13-partitions-added"), "/brokers/topics/t-b")
    # Those that were there before have had other leaders since.
    theirs = {path: node for path, node in theirs.items() if not path.endswith(("/0/state", "/1/state"))}
    wait_until(lambda: "/brokers/topics/t-b/partitions/3/state" in running.tree(), what="the new partitions")
    ours = {path: node for path, node in running.tree().items() if path in theirs}
    same(ours, theirs)


def test_topic_deleted(running: Running) -> None:
    before = running.tree()
    places = ("/admin", "/config/topics/t-", "/brokers/topics/t-")
    left = {path for path in below(recorded("15-topic-deleted"), *places) if "t-auto" not in path}
    assert left < set(below(before, *places))
    answer = running.client.call("DeleteTopics", 4, {"TopicNames": ["t-del"], "TimeoutMs": 30000})
    assert answer["Responses"][0]["ErrorCode"] == 0, answer
    wait_until(lambda: set(below(running.tree(), *places)) == left, what="the deletion")
    # Nothing else has changed.
    assert running.tree() == {path: node for path, node in before.items() if "t-del" not in path}
