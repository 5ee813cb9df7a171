"""The controller of the cluster: it runs for election and, while it holds it, takes one event after the other.

An event is decided on, its writes are done, its results are applied, the brokers concerned are told; then comes the
next one. What to write and to tell is decided in `decide`, `apply` and `requests`, which do no I/O. Watches only say
where to look again: many changes of one kind that come together are one event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from pybroker.controller import paths
from pybroker.controller.apply import apply
from pybroker.controller.channels import BrokerChannels, Outbox
from pybroker.controller.decide import decide
from pybroker.controller.outcome import Outcome, WriteResult
from pybroker.controller.paths import BrokerNode, LeaderAndIsr, TopicNode
from pybroker.controller.plan import Answer, Plan, Write
from pybroker.controller.registration import RegistrationError, register
from pybroker.controller.requests import ControllerRequest, build
from pybroker.controller.state import (
    BrokersChanged,
    ControllerState,
    DeletionsRequested,
    Elected,
    Election,
    ElectionRequested,
    Event,
    IsrProposal,
    IsrProposed,
    IsrsChanged,
    LeadersUnbalanced,
    LogDirsFailed,
    ReassignmentRequested,
    ReplicasAnswered,
    ReplicasDeleted,
    ShutdownAnnounced,
    StatesRead,
    TopicChanged,
    TopicsChanged,
    UncleanAllowed,
)
from pybroker.controller.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    SessionState,
    SetData,
    StoreError,
    WatchEvent,
)
from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from pybroker.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from pybroker.protocol.pace import Pace, run_steps
from pybroker.protocol.schema import Message
from pybroker.protocol.types import TopicPartition

log = logging.getLogger("pybroker.controller")

T = TypeVar("T")

#: How long an event waits that the store could not serve.
RETRY_SECONDS = 0.5
#: Writes sent to the store together; the next ones when these are answered.
WRITES_AT_ONCE = 2000
#: After an election, leaders are looked at for the first time.
REBALANCE_DELAY_SECONDS = 5.0


class _Fenced(Exception):
    """Another controller was elected: a write's check of the controller epoch failed."""


Look = Callable[[], Awaitable[Event | None]]


class _Work:
    """An entry of the queue: where to look for an event, or events; and who waits for the first one's outcome.
    `any_broker`: it is not only the controller's work. `whole`: who waits wants all that follows to be done as well."""

    __slots__ = ("any_broker", "asked", "events", "look", "outcome", "whole")

    def __init__(
        self,
        look: Look | None,
        events: list[Event] | None = None,
        asked: asyncio.Future[Outcome] | None = None,
        *,
        any_broker: bool = False,
        whole: bool = False,
    ) -> None:
        self.look = look
        self.events = events or []
        self.asked = asked
        self.any_broker = any_broker
        self.whole = whole
        self.outcome: Outcome | None = None  # the first event's

    def answer(self) -> None:
        if self.asked is not None and not self.asked.done() and self.outcome is not None:
            self.asked.set_result(self.outcome)

    def fail(self, error: KafkaError) -> None:
        if self.asked is not None and not self.asked.done():
            self.asked.set_exception(error)


class Rebalance(NamedTuple):
    """When leaders go back to preferred replicas: auto.leader.rebalance.enable and the settings beside it."""

    interval_seconds: float
    percentage: int


class Reassignment(NamedTuple):
    """A partition whose replicas are being moved (KIP-455)."""

    at: TopicPartition
    replicas: list[int]
    adding: list[int]
    removing: list[int]


class Controller:
    """One per broker; `is_active` while this broker is the controller. Made by the broker, ended by `stop`."""

    def __init__(
        self,
        store: MetadataStore,
        channels: BrokerChannels,
        broker: BrokerNode,
        *,
        inter_broker_listener: str,
        clock: Clock,
        unclean_election_allowed: Callable[[str], bool],
        rebalance: Rebalance | None = None,
    ) -> None:
        self._store = store
        self._broker = broker
        self._listener = inter_broker_listener
        self._clock = clock
        self._unclean_allowed = unclean_election_allowed
        self._rebalance = rebalance
        self._rebalancing: asyncio.TimerHandle | None = None
        self._outbox = Outbox(channels, self._answered, self._look_idle)
        self._state = self._new_state()
        self._epoch_version = -1
        self._active = False
        self._known_controller = -1
        self._sessions_lost = 0
        self._registered = False
        # Events to come, each once: what to look at again, or an event with its waiting requester.
        self._queue: dict[object, _Work] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._settled_here = asyncio.Event()
        self._busy = False
        self._delayed = 0
        self._task: asyncio.Task[None] | None = None

    # What others ask

    @property
    def is_active(self) -> bool:
        return self._active

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def broker_epoch(self) -> int:
        """czxid of this broker's node; -1 before `start`."""
        return self._broker.epoch

    @property
    def controller_id(self) -> int:
        """The broker that is the controller as far as this one knows; -1 for none."""
        return self._known_controller

    def broker(self, broker_id: int) -> BrokerNode | None:
        """A live broker. Only the controller knows them."""
        return self._state.brokers.get(broker_id)

    def topic_name(self, topic_id: bytes) -> str | None:
        """The topic with this id. Only the controller knows."""
        return next((name for name, node in self._state.topics.items() if node.topic_id == topic_id), None)

    @property
    def topics_pending_deletion(self) -> frozenset[str]:
        """Topics marked for deletion whose nodes are not gone yet. Only the controller knows."""
        return frozenset(self._state.deletions)

    def reassignments(self, wanted: Iterable[TopicPartition] | None = None) -> list[Reassignment]:
        """Partitions under reassignment, of all or of those wanted. Raises KafkaError NOT_CONTROLLER."""
        self._check_active()
        found = self._state.partitions() if wanted is None else (self._state.partition(at) for at in wanted)
        return [
            Reassignment(partition.at, partition.replicas, partition.adding, partition.removing)
            for partition in found
            if partition is not None and (partition.adding or partition.removing)
        ]

    async def elect_leaders(
        self, election: Election, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, Answer]:
        """ElectLeaders: an answer for each partition, or for all there are. Raises KafkaError NOT_CONTROLLER."""
        wanted = None if partitions is None else tuple(partitions)
        return (await self._request(ElectionRequested(election, wanted))).answers

    async def propose_isrs(
        self, broker_id: int, broker_epoch: int, proposals: Iterable[IsrProposal]
    ) -> dict[TopicPartition, tuple[Errors, LeaderAndIsr | None]]:
        """AlterPartition: for each partition an error, or NONE and the state as it is now. Raises KafkaError
        NOT_CONTROLLER or STALE_BROKER_EPOCH for the request as a whole."""
        outcome = await self._request(IsrProposed(broker_id, broker_epoch, tuple(proposals)))
        if outcome.error:
            raise KafkaError(outcome.error)
        answers: dict[TopicPartition, tuple[Errors, LeaderAndIsr | None]] = {}
        for at, answer in outcome.answers.items():
            partition = self._state.partition(at)
            answers[at] = (answer.error, partition.state if partition and not answer.error else None)
        return answers

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, keep_factor: bool = False
    ) -> dict[TopicPartition, Answer]:
        """AlterPartitionReassignments: new replicas of partitions, None to cancel; with `keep_factor` as many as
        before. Raises KafkaError NOT_CONTROLLER."""
        asked = {at: None if replicas is None else tuple(replicas) for at, replicas in wanted.items()}
        return (await self._request(ReassignmentRequested(asked, keep_factor))).answers

    async def announce_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """ControlledShutdown: the partitions that the broker leads still, as nobody else can, when all others were
        handed over. Raises KafkaError NOT_CONTROLLER, STALE_BROKER_EPOCH or BROKER_NOT_AVAILABLE."""
        outcome = await self._request(ShutdownAnnounced(broker_id, broker_epoch), whole=True)
        if outcome.error:
            raise KafkaError(outcome.error)
        return list(outcome.answers)

    def settings_changed(self, topic: str) -> None:
        """A topic's settings have changed: one that waits for a leader may have one now."""
        if self._active and self._unclean_allowed(topic):
            self._put_event(UncleanAllowed(topic))

    # Start and stop

    async def start(self) -> None:
        """Registers this broker and runs for election. Returns when the broker is registered and, if it was elected,
        this broker has answered the first round of requests. Raises RegistrationError, StoreError."""
        self._store.on_session(self._session_changed)
        self._broker = await register(self._store, self._broker, self._clock.now_ms())
        self._registered = True
        await self._run_for_election()
        self._task = asyncio.create_task(self._work(), name="controller")
        if self._active:
            await self._settled_here.wait()

    async def wait_idle(self) -> None:
        """Returns when no event is waiting or under way and every broker has answered."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Stops working; the nodes of this broker go with the store's session."""
        if self._task is not None:
            self._task.cancel()
            try:
                await self._task
            except asyncio.CancelledError:
                pass
            self._task = None
        self._resign()

    # Election

    async def _run_for_election(self) -> None:
        """Follows the controller there is, or becomes it: /controller and the next epoch are written in one multi."""
        while True:
            await self._store.exists(paths.CONTROLLER, self._controller_changed)
            try:
                data, _ = await self._store.get(paths.CONTROLLER, self._controller_changed)
            except NoNode:
                self._resign()
            else:
                self._follow(paths.decode_controller(data))
                return
            if await self._claim():
                return

    async def _claim(self) -> bool:
        sessions_lost = self._sessions_lost
        try:
            data, stat = await self._store.get(paths.CONTROLLER_EPOCH)
            before, version = paths.decode_epoch(data), stat.version
        except NoNode:
            before, version = 0, 0
            try:
                await self._store.create(paths.CONTROLLER_EPOCH, paths.encode_epoch(0))
            except NodeExists:
                return False
        epoch = before + 1
        claim = paths.encode_controller(self._broker.broker_id, self._clock.now_ms())
        try:
            await self._store.multi(
                [
                    Create(paths.CONTROLLER, claim, ephemeral=True),
                    SetData(paths.CONTROLLER_EPOCH, paths.encode_epoch(epoch), version),
                ]
            )
        except (NodeExists, BadVersion):
            return False
        if sessions_lost != self._sessions_lost:
            return False  # elected, and the session is over already
        log.info("broker %d is the controller, epoch %d", self._broker.broker_id, epoch)
        self._known_controller = self._broker.broker_id
        self._epoch_version = version + 1
        self._state = self._new_state()
        self._active = True
        self._put("elected", lambda: self._take_office(epoch))
        self._balance_later(REBALANCE_DELAY_SECONDS)
        return True

    def _balance_later(self, seconds: float) -> None:
        if self._rebalance is not None:
            self._rebalancing = asyncio.get_running_loop().call_later(seconds, self._balance)

    def _balance(self) -> None:
        assert self._rebalance is not None
        self._put_event(LeadersUnbalanced(self._rebalance.percentage))
        self._balance_later(self._rebalance.interval_seconds)

    def _follow(self, controller_id: int) -> None:
        if controller_id != self._known_controller:
            log.info("broker %d is the controller", controller_id)
        self._known_controller = controller_id
        if self._active and controller_id != self._broker.broker_id:
            self._resign()

    def _resign(self) -> None:
        """Forgets everything; who waits for an answer hears NOT_CONTROLLER."""
        if not self._active:
            return
        log.info("broker %d is the controller no longer", self._broker.broker_id)
        self._active = False
        if self._rebalancing is not None:
            self._rebalancing.cancel()
        if self._known_controller == self._broker.broker_id:
            self._known_controller = -1
        self._outbox.close()
        self._state = self._new_state()
        waiting, self._queue = self._queue, {key: work for key, work in self._queue.items() if work.any_broker}
        for work in waiting.values():
            work.fail(KafkaError(Errors.NOT_CONTROLLER))
        self._look_idle()

    async def _take_office(self, epoch: int) -> Event:
        """Reads the cluster and sets every watch, in the order of Apache Kafka."""
        store = self._store
        try:
            await store.create(paths.FEATURE, paths.EMPTY_FEATURES)
        except NodeExists:
            pass
        await store.exists(paths.PREFERRED_ELECTION, self._preferred_election_asked)
        for root, look in ((paths.LOG_DIR_EVENTS, self._log_dirs_changed), (paths.ISR_CHANGES, self._isrs_changed)):
            await self._take_notifications(root, look)  # whatever they said, everything is read now
        brokers = await self._read_brokers()
        names = await store.children(paths.TOPICS, self._topics_changed)
        topics = await self._read_topics(names)
        states = await self._read_states(
            TopicPartition(name, index) for name, node in topics.items() for index in node.replicas
        )
        deletions = await store.children(paths.DELETE_TOPICS, self._deletions_changed)
        self._put("preferred", self._read_preferred_election)
        return Elected(epoch, brokers, topics, states, tuple(deletions))

    def _new_state(self) -> ControllerState:
        return ControllerState(self._broker.broker_id, self._listener, self._unclean_allowed)

    # The session with the store

    def _session_changed(self, state: SessionState) -> None:
        """A session that is over takes this broker's nodes along: no controller from this moment on, and a new node
        for the broker in the next session."""
        if state == "expired":
            self._sessions_lost += 1
            self._registered = False
            self._resign()
        elif state == "connected" and self._sessions_lost and not self._registered:
            self._put("session", self._join_again, any_broker=True)

    async def _join_again(self) -> None:
        sessions_lost = self._sessions_lost
        broker = await register(self._store, self._broker, self._clock.now_ms())
        if sessions_lost == self._sessions_lost:
            self._broker, self._registered = broker, True
            log.info("broker %d is registered again, epoch %d", broker.broker_id, broker.epoch)
        await self._run_for_election()

    # Watches: they only note where to look. Bound methods of one object are equal, so each is set once.

    def _controller_changed(self, event: WatchEvent) -> None:
        self._put("controller", self._look_at_controller, any_broker=True)

    def _brokers_changed(self, event: WatchEvent) -> None:
        self._put("brokers", self._look_at_brokers)

    def _topics_changed(self, event: WatchEvent) -> None:
        self._put("topics", self._look_at_topics)

    def _topic_changed(self, event: WatchEvent) -> None:
        if event.type == "changed":
            name = event.path.rpartition("/")[2]
            self._put(("topic", name), lambda: self._look_at_topic(name))

    def _deletions_changed(self, event: WatchEvent) -> None:
        self._put("deletions", self._look_at_deletions)

    def _preferred_election_asked(self, event: WatchEvent) -> None:
        if event.type == "created":
            self._put("preferred", self._read_preferred_election)

    def _log_dirs_changed(self, event: WatchEvent) -> None:
        self._put("log directories", self._look_at_log_dirs)

    def _isrs_changed(self, event: WatchEvent) -> None:
        self._put("isr changes", self._look_at_isrs)

    async def _take_notifications(self, root: str, watch: Callable[[WatchEvent], None]) -> list[bytes]:
        """What the sequential nodes below say; they are removed."""
        names = sorted(await self._store.children(root, watch))
        at = [f"{root}/{name}" for name in names]
        found = await self._store.get_many(at)
        await self._write([Write(Delete(path)) for path in at])
        return [node[0] for node in found if node is not None]

    async def _look_at_log_dirs(self) -> Event | None:
        said = await self._take_notifications(paths.LOG_DIR_EVENTS, self._log_dirs_changed)
        broker_ids = sorted({each for data in said for each in _readable(paths.decode_log_dir_event, data)})
        return LogDirsFailed(tuple(broker_ids)) if broker_ids else None

    async def _look_at_isrs(self) -> Event | None:
        said = await self._take_notifications(paths.ISR_CHANGES, self._isrs_changed)
        lists = [each for data in said for each in _readable(paths.decode_partition_list, data)]
        wanted = dict.fromkeys(at for each in lists for at in each if self._state.partition(at) is not None)
        return IsrsChanged(await self._read_states(wanted)) if wanted else None

    async def _look_at_controller(self) -> None:
        await self._run_for_election()

    async def _look_at_brokers(self) -> Event:
        return BrokersChanged(await self._read_brokers())

    async def _look_at_topics(self) -> Event:
        names = await self._store.children(paths.TOPICS, self._topics_changed)
        unknown = [name for name in names if name not in self._state.topics]
        return TopicsChanged(frozenset(names), await self._read_topics(unknown))

    async def _look_at_topic(self, name: str) -> Event | None:
        node = (await self._read_topics([name])).get(name)
        return None if node is None else TopicChanged(name, node)

    async def _look_at_deletions(self) -> Event | None:
        names = await self._store.children(paths.DELETE_TOPICS, self._deletions_changed)
        asked = tuple(name for name in names if name not in self._state.deletions)
        return DeletionsRequested(asked) if asked else None

    async def _read_preferred_election(self) -> Event | None:
        """The old tools' way to ask for an election; the node is removed at once (also when there is none: every
        controller does so)."""
        found = await self._store.get_many([paths.PREFERRED_ELECTION], self._preferred_election_asked)
        await self._write([Write(Delete(paths.PREFERRED_ELECTION))])
        await self._store.exists(paths.PREFERRED_ELECTION, self._preferred_election_asked)
        if found[0] is None:
            return None
        try:
            wanted = paths.decode_partition_list(found[0][0])
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
        found = await self._store.get_many([paths.topic(name) for name in names], self._topic_changed)
        topics: dict[str, TopicNode] = {}
        pace = Pace()
        for name, node in zip(names, found, strict=True):
            if node is None:
                continue
            try:
                topics[name] = paths.decode_topic(node[0])
            except ValueError as error:
                log.error("the node of topic %s can't be read: %s", name, error)
            if pace.due():
                await pace.rest()
        return topics

    async def _read_states(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
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

    # The one task

    def _put(self, key: object, look: Look, *, any_broker: bool = False) -> None:
        """Queues work; a key that is queued already stays where it is."""
        if key not in self._queue:
            self._queue_work(key, _Work(look, any_broker=any_broker))

    def _put_event(self, event: Event) -> None:
        self._queue_work(object(), _Work(None, [event]))

    def _queue_work(self, key: object, work: _Work) -> None:
        self._queue[key] = work
        self._idle.clear()
        self._wake.set()

    async def _work(self) -> None:
        while True:
            while self._queue:
                self._busy = True
                key = next(iter(self._queue))
                await self._do(key, self._queue.pop(key))
                self._busy = False
            self._wake.clear()
            self._look_idle()
            await self._wake.wait()

    def _look_idle(self) -> None:
        if self._busy or self._queue or self._delayed:
            return
        if self._outbox.idle_at(self._broker.broker_id):
            self._settled_here.set()
        if self._outbox.idle:
            self._idle.set()

    async def _do(self, key: object, work: _Work) -> None:
        if not work.any_broker and not self._active:
            work.fail(KafkaError(Errors.NOT_CONTROLLER))
            return
        try:
            await self._handle(work)
        except _Fenced:
            log.warning("another controller was elected; broker %d resigns", self._broker.broker_id)
            work.fail(KafkaError(Errors.NOT_CONTROLLER))
            self._resign()
            self._put("controller", self._look_at_controller, any_broker=True)
        except RegistrationError as error:
            log.error("%s", error)
            self._try_later(work)
        except StoreError as error:
            log.warning("the metadata store failed: %s", error)
            if work.asked is None:
                self._try_later(work)
            work.fail(KafkaError(Errors.REQUEST_TIMED_OUT, str(error)))
        except Exception as error:
            # One event that fails must not end the controller: the next ones are others.
            log.exception("the controller failed at %s", work.events[:1] or key)
            work.fail(KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)))

    def _try_later(self, work: _Work) -> None:
        self._delayed += 1
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._take_up, work, self._state)

    def _take_up(self, work: _Work, state: ControllerState) -> None:
        """Work that the store could not serve comes again, unless it was for another term of office."""
        self._delayed -= 1
        if work.any_broker or state is self._state:
            self._queue_work(object(), work)
        self._look_idle()

    async def _handle(self, work: _Work) -> None:
        """An event and all that follow from it. What is left in `work` when the store fails is taken up later."""
        if work.look is not None:
            event = await work.look()
            work.look = None
            if event is not None:
                work.events.append(event)
        while work.events:
            outcome = await self._step(work.events[0])
            del work.events[0]
            work.outcome = work.outcome or outcome
            if not work.whole:
                work.answer()
            work.events[:0] = outcome.events if outcome.retry is None else [outcome.retry, *outcome.events]
            if outcome.reread:
                work.events.insert(0, StatesRead(await self._read_states(outcome.reread)))
        work.answer()

    async def _step(self, event: Event) -> Outcome:
        plan: Plan = await run_steps(decide(self._state, event))
        results = await self._write(plan.writes)
        outcome = await run_steps(apply(self._state, event, plan, results))
        if isinstance(event, Elected | BrokersChanged):
            self._outbox.keep_only(set(self._state.brokers))
        for notice in outcome.notices:
            for broker_id, request in await run_steps(build(self._state, notice)):
                self._outbox.put(broker_id, request)
        return outcome

    async def _write(self, writes: list[Write]) -> list[WriteResult]:
        """Each write only while this controller's epoch is the last. Raises _Fenced when it is not."""
        check = Check(paths.CONTROLLER_EPOCH, self._epoch_version)
        results: list[WriteResult] = []
        for start in range(0, len(writes), WRITES_AT_ONCE):
            transactions = [[check, write.op] for write in writes[start : start + WRITES_AT_ONCE]]
            for result in await self._store.multi_many(transactions):
                if not isinstance(result, StoreError):
                    results.append(result[1])
                elif result.index == 0:
                    raise _Fenced
                else:
                    results.append(result)
        return results

    async def _request(self, event: Event, *, whole: bool = False) -> Outcome:
        self._check_active()
        asked: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queue_work(object(), _Work(None, [event], asked, whole=whole))
        return await asked

    def _answered(self, broker_id: int, request: ControllerRequest, response: Message) -> None:
        """A broker's answer to one of our requests."""
        error = getattr(response, "error_code", 0)
        if error:
            log.warning("broker %d answers %s with %s", broker_id, type(request).__name__, Errors(error).name)
        if isinstance(request, StopReplicaRequest) and isinstance(response, StopReplicaResponse) and self._active:
            deleted, failed = _deletion_results(request, response)
            if deleted or failed:
                self._put_event(ReplicasDeleted(broker_id, deleted, failed))
        if isinstance(request, LeaderAndIsrRequest) and isinstance(response, LeaderAndIsrResponse) and self._active:
            served, failed = self._serving_results(request, response)
            if failed or self._state.failed.get(broker_id):
                self._put_event(ReplicasAnswered(broker_id, served, failed))

    def _serving_results(
        self, request: LeaderAndIsrRequest, response: LeaderAndIsrResponse
    ) -> tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]]:
        """Partitions that the broker serves, and those in a failed log directory. Answers up to version 4 name them."""
        names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
        errors = [(each.topic_name, each) for each in response.partition_errors] + [
            (names.get(topic.topic_id, ""), each) for topic in response.topics for each in topic.partition_errors
        ]
        by_error: dict[int, list[TopicPartition]] = {}
        for name, each in errors:
            by_error.setdefault(each.error_code, []).append(TopicPartition(name, each.partition_index))
        return tuple(by_error.get(Errors.NONE, ())), tuple(by_error.get(Errors.KAFKA_STORAGE_ERROR, ()))

    def _check_active(self) -> None:
        if not self._active:
            raise KafkaError(Errors.NOT_CONTROLLER)


def _readable(decode: Callable[[bytes], T], data: bytes) -> list[T]:
    """What a notification says, or nothing."""
    try:
        return [decode(data)]
    except ValueError as error:
        log.warning("a notification can't be read: %s", error)
        return []


def _deletion_results(
    request: StopReplicaRequest, response: StopReplicaResponse
) -> tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]]:
    """Partitions that the request asked to delete: those deleted and those not."""
    errors = {(each.topic_name, each.partition_index): each.error_code for each in response.partition_errors}
    deleted: list[TopicPartition] = []
    failed: list[TopicPartition] = []
    for topic in request.topic_states:
        for partition in topic.partition_states:
            if partition.delete_partition:
                at = TopicPartition(topic.topic_name, partition.partition_index)
                (failed if response.error_code or errors.get(at) else deleted).append(at)
    return tuple(deleted), tuple(failed)
