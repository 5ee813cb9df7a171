"""Making the tree of a Kafka cluster that of a broker with the embedded store.

What belongs to the moment stays behind: live brokers, the elected controller, notifications. A broker that has a store
of its own is alone in its cluster, so every replica has to be its own: of a larger cluster's tree, one broker's part is
taken, all partitions being assigned to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pybroker.controller import paths
from pybroker.controller.paths import LeaderAndIsr, TopicNode
from pybroker.controller.tree import Record
from pybroker.controller.tree_dump import TreeError, TreeNode

#: What is below these is of the moment; the nodes themselves stay.
_PASSING = (
    paths.BROKER_IDS,
    paths.CONFIG_CHANGES,
    paths.ISR_CHANGES,
    paths.LOG_DIR_EVENTS,
    "/kafka-acl-changes",
    "/kafka-acl-extended-changes",
    "/delegation_token/token_changes",
)
_DROPPED = frozenset({paths.CONTROLLER, paths.REASSIGN_PARTITIONS, paths.PREFERRED_ELECTION, "/migration"})


class Import(NamedTuple):
    """`records` by path, parents first. `elsewhere` names partitions that had no replica on the broker: their logs
    begin empty. `zxid` is above all in the records."""

    records: dict[str, Record]
    zxid: int
    cluster_id: str
    topics: int
    partitions: int
    elsewhere: list[str]


def prepare(nodes: Iterable[TreeNode], broker_id: int | None) -> Import:
    """The records of a new embedded store. Without `broker_id` all replicas must be one broker's (TreeError)."""
    kept = [node for node in nodes if not node.ephemeral and not is_passing(node.path)]
    by_path = {node.path: node for node in kept}
    if paths.CLUSTER_ID not in by_path:
        raise TreeError(f"The tree has no {paths.CLUSTER_ID}: it is no Kafka cluster's, or the chroot is another.")
    found = _Rewriting(by_path, broker_id)
    found.run()
    _add_parents(by_path)
    records = {
        path: Record(node.data, node.czxid, node.mzxid, node.version, node.children_made, 0)
        for path, node in sorted(by_path.items())
    }
    zxid = max((max(record.czxid, record.mzxid) for record in records.values()), default=0) + 1
    cluster_id = paths.decode_cluster_id(by_path[paths.CLUSTER_ID].data or b"")
    return Import(records, zxid, cluster_id, found.topics, found.partitions, found.elsewhere)


def is_passing(path: str) -> bool:
    """Whether a node tells of the moment only."""
    return path in _DROPPED or any(path.startswith(f"{parent}/") for parent in _PASSING)


def _add_parents(by_path: dict[str, TreeNode]) -> None:
    for path in list(by_path):
        parent = path.rpartition("/")[0]
        while parent and parent not in by_path:
            by_path[parent] = TreeNode(parent, None)
            parent = parent.rpartition("/")[0]


class _Rewriting:
    """Every partition becomes one with a single replica."""

    def __init__(self, by_path: dict[str, TreeNode], broker_id: int | None) -> None:
        self._by_path = by_path
        self._broker_id = broker_id
        self.topics = self.partitions = 0
        self.elsewhere: list[str] = []

    def run(self) -> None:
        names = self._topic_names()
        found = {name: self._topic(name) for name in names}
        brokers = {each for topic in found.values() for replicas in topic.replicas.values() for each in replicas}
        if self._broker_id is None:
            if len(brokers) > 1:
                raise TreeError(
                    f"The replicas lie on brokers {', '.join(map(str, sorted(brokers)))}, and a broker with an "
                    "embedded metadata store is alone: say with --broker-id whose log directories it is to have."
                )
            self._broker_id = next(iter(brokers), None)
        self.topics = len(found)
        for name, topic in found.items():
            self._assign(name, topic)

    def _topic_names(self) -> list[str]:
        prefix = f"{paths.TOPICS}/"
        below = (path.removeprefix(prefix) for path in self._by_path if path.startswith(prefix))
        return sorted(name for name in below if "/" not in name)

    def _topic(self, name: str) -> TopicNode:
        path = paths.topic(name)
        try:
            return paths.decode_topic(self._by_path[path].data or b"")
        except ValueError as error:
            raise TreeError(f"{path}: {error}") from None

    def _assign(self, name: str, topic: TopicNode) -> None:
        broker_id = self._broker_id
        if broker_id is None:
            return
        self.partitions += len(topic.replicas)
        for index, replicas in topic.replicas.items():
            if broker_id not in replicas:
                self.elsewhere.append(f"{name}-{index}")
        alone = {index: [broker_id] for index in topic.replicas}
        if alone == topic.replicas and not topic.adding and not topic.removing:
            return
        self._replace(paths.topic(name), paths.encode_topic(TopicNode(topic.topic_id, alone)))
        for index in topic.replicas:
            self._lead(paths.partition_state(name, index), broker_id)

    def _lead(self, path: str, broker_id: int) -> None:
        """A new leader epoch, in which the broker leads and is the whole ISR."""
        node = self._by_path.get(path)
        if node is None:  # the controller had not come to it yet, and makes it now
            return
        try:
            state = paths.decode_partition_state(node.data or b"", node.version)
        except ValueError as error:
            raise TreeError(f"{path}: {error}") from None
        led = LeaderAndIsr(broker_id, state.leader_epoch + 1, (broker_id,), state.controller_epoch)
        self._replace(path, paths.encode_partition_state(led))

    def _replace(self, path: str, data: bytes) -> None:
        node = self._by_path[path]
        self._by_path[path] = node._replace(data=data, version=node.version + 1)
