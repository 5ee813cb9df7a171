"""Where the controller's events come from: watches on the store, and the reading of what they point at.

A watch's callback only queues a look; the look reads, sets the watch again and makes the event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from pybroker.controller import paths
from pybroker.controller.fenced_writes import FencedWrites
from pybroker.controller.paths import BrokerNode, LeaderAndIsr, TopicNode
from pybroker.controller.plan import Write
from pybroker.controller.state import (
    BrokersChanged,
    ControllerState,
    DeletionsRequested,
    Elected,
    Election,
    ElectionRequested,
    Event,
    IsrsChanged,
    LogDirsFailed,
    ReassignmentNodeRead,
    TopicChanged,
    TopicsChanged,
)
from pybroker.controller.store import (
    BadVersion,
    Delete,
    MetadataStore,
    NodeExists,
    SetData,
    StoreError,
    WatchEvent,
)
from pybroker.controller.work_queue import WorkQueue
from pybroker.protocol.pace import Pace
from pybroker.protocol.types import TopicPartition
from pybroker.protocol.uuids import random_uuid

log = logging.getLogger("pybroker.controller")

T = TypeVar("T")


class Watches:
    """The controller's watches; `take_office` sets them all. `state` gives what the controller knows now."""

    def __init__(
        self, store: MetadataStore, queue: WorkQueue, writes: FencedWrites, state: Callable[[], ControllerState]
    ) -> None:
        self._store = store
        self._queue = queue
        self._writes = writes
        self._state = state

    async def take_office(self, epoch: int) -> Event:
        """Reads the cluster and sets every watch, in the order of Apache Kafka."""
        store = self._store
        await self._settle_features()
        await store.exists(paths.PREFERRED_ELECTION, self._preferred_election_asked)
        await store.exists(paths.REASSIGN_PARTITIONS, self._reassignment_asked)
        for root, look in ((paths.LOG_DIR_EVENTS, self._log_dirs_changed), (paths.ISR_CHANGES, self._isrs_changed)):
            await self._take_notifications(root, look)  # whatever they said, everything is read now
        brokers = await self._read_brokers()
        names = await store.children(paths.TOPICS, self._topics_changed)
        topics = await self._read_topics(names)
        states = await self.read_states(
            TopicPartition(name, index) for name, node in topics.items() for index in node.replicas
        )
        deletions = await store.children(paths.DELETE_TOPICS, self._deletions_changed)
        self._queue.put("reassignment", self._read_reassignment)
        self._queue.put("preferred", self._read_preferred_election)
        return Elected(epoch, brokers, topics, states, tuple(deletions))

    async def _settle_features(self) -> None:
        """/feature says whether brokers may have features. What is finalized stays, unless they must have none."""
        version = self._state().abilities.features
        none = paths.encode_no_features(version)
        found = (await self._store.get_many([paths.FEATURE]))[0]
        try:
            if found is None:
                await self._store.create(paths.FEATURE, none)
            elif paths.features_enabled(found[0]) != (version > 0):
                await self._store.set(paths.FEATURE, none, found[1].version)
        except (NodeExists, BadVersion):
            log.info("%s was written by another broker meanwhile", paths.FEATURE)
        except ValueError as error:
            log.error("%s can't be read and stays as it is: %s", paths.FEATURE, error)

    async def read_states(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        """Partition states as they are now, without those that are missing or damaged."""
        at = list(wanted)
        found = await self._store.get_many([paths.partition_state(each.topic, each.partition) for each in at])
        states: dict[TopicPartition, LeaderAndIsr] = {}
        pace = Pace()
        for each, node in zip(at, found, strict=True):
            if node is None:
                continue
            try:
                states[each] = paths.decode_partition_state(node[0], node[1].version)
            except ValueError as error:
                log.error("the state of %s can't be read: %s", each, error)
            if pace.due():
                await pace.rest()
        return states

    # Callbacks. Bound methods of one object are equal, so each is set once.

    def _brokers_changed(self, event: WatchEvent) -> None:
        self._queue.put("brokers", self._look_at_brokers)

    def _topics_changed(self, event: WatchEvent) -> None:
        self._queue.put("topics", self._look_at_topics)

    def _topic_changed(self, event: WatchEvent) -> None:
        if event.type == "changed":
            name = event.path.rpartition("/")[2]
            self._queue.put(("topic", name), lambda: self._look_at_topic(name))

    def _deletions_changed(self, event: WatchEvent) -> None:
        self._queue.put("deletions", self._look_at_deletions)

    def _preferred_election_asked(self, event: WatchEvent) -> None:
        if event.type == "created":
            self._queue.put("preferred", self._read_preferred_election)

    def _reassignment_asked(self, event: WatchEvent) -> None:
        self._queue.put("reassignment", self._read_reassignment)

    def _log_dirs_changed(self, event: WatchEvent) -> None:
        self._queue.put("log directories", self._look_at_log_dirs)

    def _isrs_changed(self, event: WatchEvent) -> None:
        self._queue.put("isr changes", self._look_at_isrs)

    async def _take_notifications(self, root: str, watch: Callable[[WatchEvent], None]) -> list[bytes]:
        """What the sequential nodes below say; they are removed."""
        names = sorted(await self._store.children(root, watch))
        at = [f"{root}/{name}" for name in names]
        found = await self._store.get_many(at)
        await self._writes.write([Write(Delete(path)) for path in at])
        return [node[0] for node in found if node is not None]

    async def _look_at_log_dirs(self) -> Event | None:
        said = await self._take_notifications(paths.LOG_DIR_EVENTS, self._log_dirs_changed)
        broker_ids = sorted({each for data in said for each in _readable(paths.decode_log_dir_event, data)})
        return LogDirsFailed(tuple(broker_ids)) if broker_ids else None

    async def _look_at_isrs(self) -> Event | None:
        said = await self._take_notifications(paths.ISR_CHANGES, self._isrs_changed)
        lists = [each for data in said for each in _readable(paths.decode_partition_list, data)]
        wanted = dict.fromkeys(at for each in lists for at in each if self._state().partition(at) is not None)
        return IsrsChanged(await self.read_states(wanted)) if wanted else None

    async def _look_at_brokers(self) -> Event:
        return BrokersChanged(await self._read_brokers())

    async def _look_at_topics(self) -> Event:
        names = await self._store.children(paths.TOPICS, self._topics_changed)
        unknown = [name for name in names if name not in self._state().topics]
        return TopicsChanged(frozenset(names), await self._read_topics(unknown))

    async def _look_at_topic(self, name: str) -> Event | None:
        node = (await self._read_topics([name])).get(name)
        return None if node is None else TopicChanged(name, node)

    async def _look_at_deletions(self) -> Event | None:
        names = await self._store.children(paths.DELETE_TOPICS, self._deletions_changed)
        asked = tuple(name for name in names if name not in self._state().deletions)
        return DeletionsRequested(asked) if asked else None

    async def _read_reassignment(self) -> Event | None:
        """The old tools' way to move partitions. The node stays until all that it names is done."""
        if await self._store.exists(paths.REASSIGN_PARTITIONS, self._reassignment_asked) is None:
            return None
        found = await self._store.get_many([paths.REASSIGN_PARTITIONS])
        if found[0] is None:
            return None
        try:
            return ReassignmentNodeRead(paths.decode_reassignments(found[0][0]))
        except ValueError as error:
            log.warning("a request for reassignments can't be read: %s", error)
            return None

    async def _read_preferred_election(self) -> Event | None:
        """The old tools' way to ask for an election. The node that was read is removed at once: never one that came
        since, which nobody would read."""
        if await self._store.exists(paths.PREFERRED_ELECTION, self._preferred_election_asked) is None:
            return None
        found = (await self._store.get_many([paths.PREFERRED_ELECTION]))[0]
        if found is None:
            return None
        await self._writes.write([Write(Delete(paths.PREFERRED_ELECTION, found[1].version))])
        self._queue.put("preferred", self._read_preferred_election)  # sets the watch again
        try:
            wanted = paths.decode_partition_list(found[0])
        except ValueError as error:
            log.warning("a request for elections can't be read: %s", error)
            return None
        return ElectionRequested(Election.PREFERRED, tuple(wanted))

    # Reading

    async def _read_brokers(self) -> dict[int, BrokerNode]:
        names = await self._store.children(paths.BROKER_IDS, self._brokers_changed)
        ids = sorted(int(name) for name in names if name.isdigit())
        found = await self._store.get_many([paths.broker(broker_id) for broker_id in ids], self._brokers_changed)
        brokers: dict[int, BrokerNode] = {}
        for broker_id, node in zip(ids, found, strict=True):
            if node is None:
                continue
            try:
                brokers[broker_id] = paths.decode_broker(broker_id, node[0], node[1].czxid)
            except ValueError as error:
                log.error("the node of broker %d can't be read: %s", broker_id, error)
        return brokers

    async def _read_topics(self, names: list[str]) -> dict[str, TopicNode]:
        """Topics that brokers of an older protocol have made get their ids (KIP-516)."""
        topics: dict[str, TopicNode] = {}
        while names:
            read = await self._read_topic_nodes(names)
            topics |= {name: node for name, (node, _) in read.items()}
            names = await self._give_ids(read, topics)
        return topics

    async def _give_ids(self, read: dict[str, tuple[TopicNode, int]], topics: dict[str, TopicNode]) -> list[str]:
        """Those to be read again, as others wrote them meanwhile."""
        if not self._state().abilities.topic_ids:
            return []
        new = {
            name: replace(node, topic_id=random_uuid()) for name, (node, _) in read.items() if node.topic_id is None
        }
        sets = [SetData(paths.topic(name), paths.encode_topic(node), read[name][1]) for name, node in new.items()]
        results = dict(zip(new, await self._writes.write([Write(each) for each in sets]), strict=True))
        topics |= {name: new[name] for name, result in results.items() if not isinstance(result, StoreError)}
        if new:
            log.info("%d topics that had no ids get them: %s", len(new), ", ".join(list(new)[:10]))
        return [name for name, result in results.items() if isinstance(result, BadVersion)]

    async def _read_topic_nodes(self, names: list[str]) -> dict[str, tuple[TopicNode, int]]:
        """With the nodes' versions."""
        found = await self._store.get_many([paths.topic(name) for name in names], self._topic_changed)
        topics: dict[str, tuple[TopicNode, int]] = {}
        pace = Pace()
        for name, node in zip(names, found, strict=True):
            if node is None:
                continue
            try:
                topics[name] = paths.decode_topic(node[0]), node[1].version
            except ValueError as error:
                log.error("the node of topic %s can't be read: %s", name, error)
            if pace.due():
                await pace.rest()
        return topics


def _readable(decode: Callable[[bytes], T], data: bytes) -> list[T]:
    """What a notification says, or nothing."""
    try:
        return [decode(data)]
    except ValueError as error:
        log.warning("a notification can't be read: %s", error)
        return []
