"""The controller of the cluster: it runs for election and, while it holds it, takes one event after the other.

An event is decided on, its writes are done, its results are applied, the brokers concerned are told; then comes the
next one. What to write and to tell is decided in `decide`, `apply` and `requests`, which do no I/O; events come from
`watches` and from what others ask here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pybroker.controller import paths
from pybroker.controller.answers import deletions, servings
from pybroker.controller.apply import apply
from pybroker.controller.channels import BrokerChannels, Outbox
from pybroker.controller.decide import decide, may_be_outdated
from pybroker.controller.election import claim
from pybroker.controller.fenced_writes import Fenced, FencedWrites
from pybroker.controller.outcome import Outcome
from pybroker.controller.paths import BrokerNode, LeaderAndIsr
from pybroker.controller.plan import Answer, Plan
from pybroker.controller.registration import RegistrationError, register
from pybroker.controller.requests import ControllerRequest, TellReplicas, build
from pybroker.controller.state import (
    LATEST,
    Abilities,
    BrokersChanged,
    ControllerState,
    Elected,
    Election,
    ElectionRequested,
    Event,
    IsrProposal,
    IsrProposed,
    LeadersUnbalanced,
    ReassignmentRequested,
    ReplicasAnswered,
    ReplicasDeleted,
    ShutdownAnnounced,
    StatesRead,
    UncleanAllowed,
)
from pybroker.controller.store import BadVersion, MetadataStore, NoNode, SessionState, StoreError, WatchEvent
from pybroker.controller.watches import Watches
from pybroker.controller.work_queue import Work, WorkQueue
from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from pybroker.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from pybroker.protocol.pace import run_steps
from pybroker.protocol.schema import Message
from pybroker.protocol.types import TopicPartition

log = logging.getLogger("pybroker.controller")

#: After an election, leaders are looked at for the first time.
REBALANCE_DELAY_SECONDS = 5.0


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
        abilities: Abilities = LATEST,
    ) -> None:
        self._store = store
        self._broker = broker
        self._listener = inter_broker_listener
        self._clock = clock
        self._unclean_allowed = unclean_election_allowed
        self._rebalance = rebalance
        self._abilities = abilities
        self._rebalancing: asyncio.TimerHandle | None = None
        self._outbox = Outbox(channels, self._answered, self._look_idle)
        self._state = self._new_state()
        self._active = False
        self._known_controller = -1
        self._sessions_lost = 0
        self._registered = False
        self._queue = WorkQueue(self._look_idle)
        self._writes = FencedWrites(store)
        self._watches = Watches(store, self._queue, self._writes, lambda: self._state)
        self._idle = asyncio.Event()
        self._settled_here = asyncio.Event()
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
            self._queue.put_event(UncleanAllowed(topic))

    def defaults_changed(self) -> None:
        """What holds for topics without settings of their own has changed: as `settings_changed`, for all."""
        if self._active:
            self._queue.put_event(UncleanAllowed(None))

    # Start and stop

    async def start(self) -> None:
        """Registers this broker and runs for election. Returns when the broker is registered and, if it was elected,
        this broker has answered the first round of requests. Raises RegistrationError, StoreError."""
        self._store.on_session(self._session_changed)
        self._broker = await register(self._store, self._broker, self._clock.now_ms())
        self._registered = True
        await self._run_for_election()
        self._task = asyncio.create_task(self._queue.run(self._do), name="controller")
        if self._active:
            await self._settled_here.wait()

    async def wait_idle(self) -> None:
        """Returns when no event is waiting or under way and every broker has answered."""
        self._idle.clear()
        self._look_idle()
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
                data, stat = await self._store.get(paths.CONTROLLER, self._controller_changed)
            except NoNode:
                self._resign()
            else:
                controller_id = paths.decode_controller(data)
                own = controller_id == self._broker.broker_id and stat.ephemeral_owner == self._store.session_id
                if self._active or not own:
                    self._follow(controller_id)
                    return
                await self._give_back(stat.version)
            if await self._claim():
                return

    async def _give_back(self, version: int) -> None:
        """This session owns the office, but nobody here knows: the answer to the claim was lost."""
        try:
            await self._store.delete(paths.CONTROLLER, version)
        except (BadVersion, NoNode):
            pass  # somebody else saw to it

    async def _claim(self) -> bool:
        sessions_lost = self._sessions_lost
        office = await claim(self._store, self._broker.broker_id, self._clock.now_ms())
        if office is None or sessions_lost != self._sessions_lost:
            return False  # another is faster, or elected, and the session is over already
        log.info("broker %d is the controller, epoch %d", self._broker.broker_id, office.epoch)
        self._known_controller = self._broker.broker_id
        self._writes.epoch_version = office.epoch_version
        self._state = self._new_state()
        self._active = True
        self._queue.drop_office()  # watches of an earlier term may have fired since: the first event is the election
        self._queue.put("elected", lambda: self._watches.take_office(office.epoch))
        self._balance_later(REBALANCE_DELAY_SECONDS)
        return True

    def _balance_later(self, seconds: float) -> None:
        if self._rebalance is not None:
            self._rebalancing = asyncio.get_running_loop().call_later(seconds, self._balance)

    def _balance(self) -> None:
        assert self._rebalance is not None
        self._queue.put_event(LeadersUnbalanced(self._rebalance.percentage))
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
        self._queue.drop_office()
        self._look_idle()

    def _new_state(self) -> ControllerState:
        return ControllerState(self._broker.broker_id, self._listener, self._unclean_allowed, self._abilities)

    # The session with the store

    def _session_changed(self, state: SessionState) -> None:
        """A session that is over takes this broker's nodes along: no controller from this moment on, and a new node
        for the broker in the next session."""
        if state == "expired":
            self._sessions_lost += 1
            self._registered = False
            self._resign()
        elif state == "connected" and self._sessions_lost and not self._registered:
            self._queue.put("session", self._join_again, any_broker=True)

    async def _join_again(self) -> None:
        sessions_lost = self._sessions_lost
        broker = await register(self._store, self._broker, self._clock.now_ms())
        if sessions_lost == self._sessions_lost:
            self._broker, self._registered = broker, True
            log.info("broker %d is registered again, epoch %d", broker.broker_id, broker.epoch)
        await self._run_for_election()

    def _controller_changed(self, event: WatchEvent) -> None:
        self._queue.put("controller", self._look_at_controller, any_broker=True)

    async def _look_at_controller(self) -> None:
        await self._run_for_election()

    # The one task

    def _look_idle(self) -> None:
        if not self._queue.idle:
            return
        if self._outbox.idle_at(self._broker.broker_id):
            self._settled_here.set()
        if self._outbox.idle:
            self._idle.set()

    async def _do(self, key: object, work: Work) -> None:
        if not work.any_broker and not self._active:
            work.fail(KafkaError(Errors.NOT_CONTROLLER))
            return
        try:
            await self._handle(work)
        except Fenced:
            log.warning("another controller was elected; broker %d resigns", self._broker.broker_id)
            work.fail(KafkaError(Errors.NOT_CONTROLLER))
            self._resign()
            self._queue.put("controller", self._look_at_controller, any_broker=True)
        except RegistrationError as error:
            log.error("%s", error)
            self._try_later(work)
        except StoreError as error:
            log.warning("the metadata store failed: %s", error)
            if work.asked is None or work.outcome is not None:  # what follows from an outcome has to come
                self._try_later(work)
            work.fail(KafkaError(Errors.REQUEST_TIMED_OUT, str(error)))
        except Exception as error:
            # One event that fails must not end the controller: the next ones are others.
            log.exception("the controller failed at %s", work.events[:1] or key)
            work.fail(KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)))

    def _try_later(self, work: Work) -> None:
        """It comes again, unless it is for this term of office and that is over then."""
        state = self._state
        self._queue.later(work, lambda: work.any_broker or state is self._state)

    async def _handle(self, work: Work) -> None:
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
                work.events.insert(0, StatesRead(await self._watches.read_states(outcome.reread)))
        work.answer()

    async def _step(self, event: Event) -> Outcome:
        if outdated := may_be_outdated(self._state, event):
            read = StatesRead(await self._watches.read_states(outdated))
            await run_steps(apply(self._state, read, Plan([], {}), []))
        plan: Plan = await run_steps(decide(self._state, event))
        results = await self._writes.write(plan.writes)
        outcome = await run_steps(apply(self._state, event, plan, results))
        if isinstance(event, Elected | BrokersChanged):
            self._outbox.keep_only(set(self._state.brokers))
        for notice in outcome.notices:
            requests = await run_steps(build(self._state, notice))
            if isinstance(notice, TellReplicas) and notice.moved:
                self._outbox.put_leaders_first(requests)
            else:
                self._outbox.put(requests)
        return outcome

    async def _request(self, event: Event, *, whole: bool = False) -> Outcome:
        self._check_active()
        return await self._queue.ask(event, whole=whole)

    def _answered(self, broker_id: int, request: ControllerRequest, response: Message) -> None:
        """A broker's answer to one of our requests."""
        error = getattr(response, "error_code", 0)
        if error:
            log.warning("broker %d answers %s with %s", broker_id, type(request).__name__, Errors(error).name)
        if isinstance(request, StopReplicaRequest) and isinstance(response, StopReplicaResponse) and self._active:
            deleted, failed = deletions(request, response)
            if deleted or failed:
                self._queue.put_event(ReplicasDeleted(broker_id, deleted, failed))
        if isinstance(request, LeaderAndIsrRequest) and isinstance(response, LeaderAndIsrResponse) and self._active:
            served, failed = servings(request, response)
            if failed or self._state.failed.get(broker_id):
                self._queue.put_event(ReplicasAnswered(broker_id, served, failed))

    def _check_active(self) -> None:
        if not self._active:
            raise KafkaError(Errors.NOT_CONTROLLER)
