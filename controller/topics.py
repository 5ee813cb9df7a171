"""Creating, enlarging and deleting topics: what any broker may write, with Kafka 3.9's checks and words.

The writer only writes what is wanted; the controller sees it and makes it so. Order of nodes as Kafka has it:

| act | nodes |
|---|---|
| create | /config/topics/<t> (also when it is empty), /brokers/topics/<t> |
| add partitions | /brokers/topics/<t> |
| delete | /admin/delete_topics/<t> |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from pybroker.config import BrokerConfig
from pybroker.config.errors import ConfigError
from pybroker.config.topic import validate_topic_config
from pybroker.controller import paths, topic_names
from pybroker.controller.assignment import Assignment, assign_replicas
from pybroker.controller.store import Create, MetadataStore, NodeExists, NoNode, Op, SetData, StoreError
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.pace import Pace
from pybroker.protocol.uuids import ZERO_UUID, random_uuid

logger = logging.getLogger(__name__)

UNSET = -1
"""Number of partitions, or replication factor, that the broker's default decides."""

MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka 4's bound; 3.9 would try and run out of memory."""

AUTO_CREATION_SECONDS = 1.0
"""How long who asked for a topic that is missing waits for its creation. The store may be out of reach for long, and
what the client sent behind its question waits as well."""

_AUTO_CREATION_STARTED = frozenset({Errors.TOPIC_ALREADY_EXISTS, Errors.REQUEST_TIMED_OUT})


class ClusterView(Protocol):
    """What is known of the cluster (the broker's metadata cache)."""

    def __contains__(self, topic: str) -> bool: ...

    def racks(self) -> Mapping[int, str | None]:
        """Live brokers and their racks."""


class ConfigMemory(Protocol):
    """Where this broker keeps the settings of topics (ConfigRepository)."""

    def remember(self, entity_path: str, settings: Mapping[str, str]) -> None:
        """Know settings that are being written."""

    async def refresh(self, entity_path: str) -> object:
        """Read an entity from the store again."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that somebody wants. `assignments` are (partition, brokers) as sent, doubles included."""

    name: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


class CreatedTopic(NamedTuple):
    """`topic_id` is ZERO_UUID when it was only validated, and where topics have none."""

    topic_id: bytes
    assignment: Assignment
    configs: dict[str, str]


class _InternalTopic(NamedTuple):
    """An internal topic: the names of the broker settings of its size, and its own settings ({} = a setting's text)."""

    partitions: str
    replication_factor: str
    configs: Mapping[str, str]


_INTERNAL: dict[str, _InternalTopic] = {
    topic_names.CONSUMER_OFFSETS: _InternalTopic(
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        {"compression.type": "producer", "cleanup.policy": "compact", "segment.bytes": "{offsets.topic.segment.bytes}"},
    ),
    topic_names.TRANSACTION_STATE: _InternalTopic(
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        {
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": "{transaction.state.log.min.isr}",
            "segment.bytes": "{transaction.state.log.segment.bytes}",
            "unclean.leader.election.enable": "false",
        },
    ),
}


class _Coming(NamedTuple):
    """A topic that is being made because somebody asked for it, and until when (loop time) that is waited for."""

    answers: asyncio.Task[dict[str, Errors]]
    deadline: float


class TopicWriter:
    """See the module's text."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: ClusterView,
        config: BrokerConfig,
        configs: ConfigMemory,
        random: Random | None = None,
        *,
        topic_ids: bool = True,
    ) -> None:
        """Without `topic_ids` the brokers' protocol is older than ids are, and topics have none."""
        self._store = store
        self._cluster = cluster
        self._config = config
        self._configs = configs
        self._random = random or Random()
        self._topic_ids = topic_ids
        # Names being written: a second request for one finds that it exists.
        self._creating: set[str] = set()
        self._coming: dict[str, _Coming] = {}

    # -- creating

    async def create(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics of different names, each on its own: what was made of it, or why it was refused."""
        wanted = list(topics)
        refusal = self._too_many(wanted)
        if refusal is not None:
            return {topic.name: refusal for topic in wanted}
        results: dict[str, CreatedTopic | KafkaError] = {}
        mine: list[NewTopic] = []
        for topic in wanted:
            if topic.name in self._cluster or topic.name in self._creating:
                results[topic.name] = _exists(topic.name)
            else:
                mine.append(topic)
        if not validate_only:
            self._creating.update(topic.name for topic in mine)
        try:
            plans = await self._plan(mine, results)
            if validate_only:
                results |= {name: plan._replace(topic_id=ZERO_UUID) for name, plan in plans.items()}
            elif plans:
                await self._write(plans, results)
        finally:
            if not validate_only:
                self._creating.difference_update(topic.name for topic in mine)
        return results

    async def auto_create(self, names: Sequence[str]) -> dict[str, Errors]:
        """Create topics with the broker's defaults, as Metadata asks for; returns what to answer for each.

        LEADER_NOT_AVAILABLE when the topic is there or coming: the client asks again. One that the store has is there,
        although this broker may not have been told of it, nor of enough brokers to make it. What takes longer than
        AUTO_CREATION_SECONDS goes on without being waited for; while too much of that goes on, nothing new is begun.
        """
        loop = asyncio.get_running_loop()
        fresh = list(dict.fromkeys(name for name in names if name not in self._coming))
        if fresh and len(self._coming) < MAX_PARTITIONS_PER_REQUEST:
            task = asyncio.create_task(self._auto_create(fresh), name="auto-create")
            self._coming |= dict.fromkeys(fresh, _Coming(task, loop.time() + AUTO_CREATION_SECONDS))
            task.add_done_callback(lambda done: self._came(fresh, done))
        coming = {name: self._coming[name] for name in names if name in self._coming}
        for creation in set(coming.values()):
            await asyncio.wait([creation.answers], timeout=max(creation.deadline - loop.time(), 0))
        done = {name: creation.answers.result()[name] for name, creation in coming.items() if creation.answers.done()}
        return dict.fromkeys(names, Errors.LEADER_NOT_AVAILABLE) | done

    def is_coming(self, name: str) -> bool:
        """Whether a topic that was asked for is not written yet."""
        return name in self._coming

    def _came(self, names: Sequence[str], task: asyncio.Task[dict[str, Errors]]) -> None:
        for name in names:
            del self._coming[name]
        if not task.cancelled():
            task.exception()  # told to who still waits, maybe nobody

    async def _auto_create(self, names: Sequence[str]) -> dict[str, Errors]:
        valid = [name for name in names if topic_names.is_valid(name)]
        answers = dict.fromkeys(names, Errors.INVALID_TOPIC_EXCEPTION)
        present = await self._present(valid)
        answers |= dict.fromkeys(present, Errors.LEADER_NOT_AVAILABLE)
        missing = [self.defaults(name) for name in valid if name not in present]
        for name, result in (await self.create(missing)).items():
            if isinstance(result, CreatedTopic) or result.code in _AUTO_CREATION_STARTED:
                answers[name] = Errors.LEADER_NOT_AVAILABLE
                continue
            answers[name] = result.code
            if result.code == Errors.INVALID_REPLICATION_FACTOR:
                setting = _INTERNAL[name].replication_factor if name in _INTERNAL else "default.replication.factor"
                logger.error("Topic %s can't be created with %s: %s", name, setting, result.message)
        return answers

    def defaults(self, name: str) -> NewTopic:
        """A topic as the broker makes it by itself; internal ones have settings of their own."""
        internal = _INTERNAL.get(name)
        if internal is None:
            return NewTopic(name)
        configs = tuple(
            (key, self._config.text(text[1:-1]) if text.startswith("{") else text)
            for key, text in internal.configs.items()
        )
        return NewTopic(
            name,
            self._config.int(internal.partitions),
            self._config.int(internal.replication_factor),
            configs=configs,
        )

    def _too_many(self, topics: Iterable[NewTopic]) -> KafkaError | None:
        default = self._config.int("num.partitions")
        total = 0
        for topic in topics:
            if topic.assignments:
                total += len(topic.assignments)
            else:
                total += default if topic.partitions == UNSET else max(topic.partitions, 0)
        if total <= MAX_PARTITIONS_PER_REQUEST:
            return None
        return KafkaError(Errors.POLICY_VIOLATION, "Excessively large number of partitions per request.")

    async def _plan(
        self, topics: Sequence[NewTopic], results: dict[str, CreatedTopic | KafkaError]
    ) -> dict[str, CreatedTopic]:
        """What to write for each topic; what can't be goes to `results`. All checks that read the store are here."""
        known = await self._present([topic.name for topic in topics if topic_names.is_valid(topic.name)])
        others = topic_names.Similar()
        if any(topic_names.may_collide(topic.name) for topic in topics):
            others.update(await self._store.children(paths.TOPICS))
            others.update(self._creating.difference(topic.name for topic in topics))
        plans: dict[str, CreatedTopic] = {}
        pace = Pace()
        for topic in topics:
            if pace.due():
                await pace.rest()
            try:
                plans[topic.name] = self._plan_one(topic, known, others)
                others.update([topic.name])
            except KafkaError as refusal:
                results[topic.name] = refusal
        return plans

    async def _present(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """Of these topics, the ones that the store has, each with the answer to a wish to create it."""
        nodes = await self._store.get_many(
            [paths.delete_topic(name) for name in names] + [paths.topic(name) for name in names]
        )
        found: dict[str, KafkaError] = {}
        for name, deletion, topic in zip(names, nodes[: len(names)], nodes[len(names) :], strict=True):
            if deletion is not None:
                found[name] = KafkaError(Errors.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
            elif topic is not None:
                found[name] = _exists(name)
        return found

    def _plan_one(self, topic: NewTopic, known: Mapping[str, KafkaError], others: topic_names.Similar) -> CreatedTopic:
        """Kafka's checks in Kafka's order (ZkAdminManager.createTopics, AdminZkClient.validateTopicCreate)."""
        nulls = [name for name, value in topic.configs if value is None]
        if nulls:
            raise KafkaError(Errors.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
        assignment = self._assignment(topic)
        topic_names.validate(topic.name)
        if topic.name in known:
            raise known[topic.name]
        if colliding := others.to(topic.name):
            raise KafkaError(
                Errors.INVALID_TOPIC_EXCEPTION,
                f"Topic '{topic.name}' collides with existing topics: {', '.join(colliding)}",
            )
        validate_assignment(assignment)
        configs = {name: value for name, value in topic.configs if value is not None}
        try:
            validate_topic_config(configs, self._config)
        except ConfigError as error:
            raise KafkaError(Errors.INVALID_CONFIG, error.message) from None
        return CreatedTopic(random_uuid() if self._topic_ids else ZERO_UUID, assignment, configs)

    def _assignment(self, topic: NewTopic) -> Assignment:
        if topic.assignments:
            if topic.partitions != UNSET or topic.replication_factor != UNSET:
                raise KafkaError(
                    Errors.INVALID_REQUEST,
                    "Both numPartitions or replicationFactor and replicasAssignments were set. "
                    "Both cannot be used at the same time.",
                )
            return {index: list(brokers) for index, brokers in topic.assignments}
        partitions, factor = topic.partitions, topic.replication_factor
        return assign_replicas(
            self._cluster.racks(),
            self._config.int("num.partitions") if partitions == UNSET else partitions,
            self._config.int("default.replication.factor") if factor == UNSET else factor,
            random=self._random,
        )

    async def _write(self, plans: dict[str, CreatedTopic], results: dict[str, CreatedTopic | KafkaError]) -> None:
        """One multi a topic. Settings that an earlier topic of the name left behind are replaced."""
        refused = await self._try(plans, lambda path, data: Create(path, data), results)
        left_behind = {name: plans[name] for name, error in refused.items() if error.index == 0}
        if left_behind:
            refused |= await self._try(left_behind, lambda path, data: SetData(path, data), results)
        for name, error in refused.items():
            if name not in results:
                results[name] = _exists(name) if isinstance(error, NodeExists) else store_error(error)
                await self._configs.refresh(f"topics/{name}")

    async def _try(
        self,
        plans: Mapping[str, CreatedTopic],
        write_configs: Callable[[str, bytes], Op],
        results: dict[str, CreatedTopic | KafkaError],
    ) -> dict[str, StoreError]:
        transactions: list[list[Op]] = []
        pace = Pace()
        for name, plan in plans.items():
            node = paths.TopicNode(plan.topic_id if self._topic_ids else None, plan.assignment)
            transactions.append(
                [
                    write_configs(paths.config("topics", name), paths.encode_config(plan.configs)),
                    Create(paths.topic(name), paths.encode_topic(node)),
                ]
            )
            # The controller may act before the answer to this write is seen: the settings have to be known by then.
            self._configs.remember(f"topics/{name}", plan.configs)
            if pace.due():
                await pace.rest()
        refused: dict[str, StoreError] = {}
        for (name, plan), outcome in zip(plans.items(), await self._store.multi_many(transactions), strict=True):
            if isinstance(outcome, StoreError):
                refused[name] = outcome
            else:
                results[name] = plan
        return refused

    # -- enlarging

    async def add_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool = False
    ) -> Assignment:
        """Enlarge a topic to `count` partitions; returns the whole assignment. Raises KafkaError."""
        while True:
            node, version = await self._topic_node(name)
            increment = count - len(node.replicas)
            if increment < 0:
                raise KafkaError(
                    Errors.INVALID_PARTITIONS,
                    f"Topic currently has {len(node.replicas)} partitions, which is higher than the requested {count}.",
                )
            if increment == 0:
                raise KafkaError(Errors.INVALID_PARTITIONS, f"Topic already has {len(node.replicas)} partitions.")
            if increment > MAX_PARTITIONS_PER_REQUEST:
                raise KafkaError(Errors.POLICY_VIOLATION, "Excessively large number of partitions per request.")
            added = self._new_partitions(node, increment, assignments)
            node.replicas |= added
            if validate_only:
                return node.replicas
            try:
                await self._store.set(paths.topic(name), paths.encode_topic(node), version)
                return node.replicas
            except NoNode:
                continue
            except StoreError as error:
                raise store_error(error) from error

    async def _topic_node(self, name: str) -> tuple[paths.TopicNode, int]:
        unknown = KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if not topic_names.is_valid(name):
            raise unknown
        try:
            data, stat = await self._store.get(paths.topic(name))
            deletion = await self._store.exists(paths.delete_topic(name))
        except NoNode:
            raise unknown from None
        except StoreError as error:
            raise store_error(error) from error
        if deletion is not None:
            raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
        node = paths.decode_topic(data)
        if any(node.adding.values()) or any(node.removing.values()):
            raise KafkaError(
                Errors.REASSIGNMENT_IN_PROGRESS,
                f"A partition reassignment is in progress for the topic '{name}'.",
            )
        return node, stat.version

    def _new_partitions(
        self, node: paths.TopicNode, increment: int, assignments: Sequence[Sequence[int]] | None
    ) -> Assignment:
        racks = self._cluster.racks()
        first = node.replicas.get(0, [])
        if assignments is None:
            brokers = sorted(racks)
            start = next((index for index, broker in enumerate(brokers) if first and broker >= first[0]), 0)
            return assign_replicas(
                racks, increment, len(first), random=self._random, fixed_start=start, first_partition=len(node.replicas)
            )
        unknown = sorted({broker for replicas in assignments for broker in replicas} - set(racks))
        if unknown:
            raise _bad_assignment(f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))}.")
        if len(assignments) != increment:
            raise _bad_assignment(
                f"Increasing the number of partitions by {increment} but {len(assignments)} assignments provided."
            )
        added = {len(node.replicas) + offset: list(replicas) for offset, replicas in enumerate(assignments)}
        _validate_added(added, len(first))
        return added

    # -- deleting

    async def delete(self, name: str) -> None:
        """Mark a topic for deletion; once more is no error. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        try:
            if await self._store.exists(paths.topic(name)) is None:
                raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"Topic `{name}` to delete does not exist")
            await self._store.create(paths.delete_topic(name), parents=True)
        except NodeExists:
            pass
        except StoreError as error:
            raise store_error(error) from error


def validate_assignment(assignment: Assignment) -> None:
    """A new topic's replicas, given by hand: same number for all, no broker twice, partitions 0..n-1 (unknown brokers
    are allowed, as in Kafka). Raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    if len({len(replicas) for replicas in assignment.values()}) != 1:
        raise _bad_assignment("All partitions should have the same number of replicas")
    if any(len(set(replicas)) != len(replicas) for replicas in assignment.values()):
        raise _bad_assignment(f"Duplicate replica assignment found: {_scala(assignment)}")
    if set(assignment) != set(range(len(assignment))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")


def _validate_added(added: Assignment, replication_factor: int) -> None:
    for index, replicas in added.items():
        if not replicas:
            raise _bad_assignment(f"Cannot have replication factor of 0 for partition id {index}.")
        if len(set(replicas)) != len(replicas):
            listed = ", ".join(map(str, replicas))
            raise _bad_assignment(
                f"Duplicate brokers not allowed in replica assignment: {listed} for partition id {index}."
            )
    other = {index: len(replicas) for index, replicas in added.items() if len(replicas) != replication_factor}
    if other:
        raise _bad_assignment(
            f"Inconsistent replication factor between partitions, partition 0 has {replication_factor} while partitions"
            f" [{', '.join(map(str, other))}] have replication factors [{', '.join(map(str, other.values()))}],"
            " respectively."
        )


def store_error(error: StoreError) -> KafkaError:
    """What a client is told when the metadata store fails."""
    return KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error))


def _exists(name: str) -> KafkaError:
    return KafkaError(Errors.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(Errors.INVALID_REPLICA_ASSIGNMENT, message)


def _scala(assignment: Assignment) -> str:
    """As Kafka prints it."""
    shown = (f"{index} -> ArrayBuffer({', '.join(map(str, replicas))})" for index, replicas in assignment.items())
    return f"HashMap({', '.join(shown)})"
