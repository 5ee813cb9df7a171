"""In-sync sets: who has fallen behind, who has caught up, and asking the controller to write it (KIP-497).

Kafka's DefaultAlterPartitionManager and the ISR part of its Partition. Changes of many partitions go in one
AlterPartition request, one request at a time; until a change is answered, the larger of both sets holds the partition's
high watermark (leader.LeaderState).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    ResponsePartitionData,
    TopicData,
)
from pybroker.protocol.pace import Pace
from pybroker.protocol.types import TopicPartition
from pybroker.replication.partition import Partition

logger = logging.getLogger(__name__)

RETRY_MS = (50, 1000)
NAMED_AT_MOST = 5  # partitions in one warning
#: Another leader epoch has begun, and LeaderAndIsr will tell of it.
OVERTAKEN = frozenset({Errors.FENCED_LEADER_EPOCH, Errors.NEW_LEADER_ELECTED})
#: The set can't be had, now: the old one goes on, and what is to be changed is found again.
REFUSED = frozenset({Errors.INELIGIBLE_REPLICA, Errors.OPERATION_NOT_ATTEMPTED})


class Controller(Protocol):
    """The way to the controller, wherever it is."""

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """`request` names topics by name and by id. Raises OSError, and KafkaError for the request as a whole."""


class KnownState(NamedTuple):
    """What UpdateMetadata has told of a partition."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class _Change(NamedTuple):
    partition: Partition
    leader_epoch: int
    isr: tuple[int, ...]


Changes = dict[TopicPartition, _Change]


class IsrChanges:
    """Proposes ISR changes of the partitions that this broker leads, and commits what the controller answers. No I/O:
    IsrSender carries the requests."""

    def __init__(
        self,
        broker_id: int,
        clock: Clock,
        lag_max_ms: int,
        *,
        is_alive: Callable[[int], bool],
        known: Callable[[str, int], KnownState | None],
    ) -> None:
        """`lag_max_ms`: replica.lag.time.max.ms. `is_alive` and `known` ask the metadata cache."""
        self.on_waiting: Callable[[], None] = _nobody
        self.lag_max_ms = lag_max_ms
        self._broker_id = broker_id
        self._clock = clock
        self._is_alive = is_alive
        self._known = known
        self._waiting: Changes = {}
        self._warned: set[tuple[TopicPartition, int]] = set()

    # -- who joins and who leaves -------------------------------------------------------------------------------

    def consider(self, partition: Partition) -> None:
        """Propose an ISR with all followers that may join it."""
        leader = partition.leader
        if leader is None or leader.in_flight is not None:
            return
        mark, now = partition.log.high_watermark, self._clock.monotonic_ms()
        joining = [each for each in leader.followers if leader.may_join_isr(each, mark, now) and self._is_alive(each)]
        if joining:
            self._propose(partition, [*partition.isr, *joining])

    def lost(self, partitions: Iterable[Partition], brokers: set[int]) -> None:
        """These brokers live no more: who waits for them to join the ISR goes on without them. Those that are in it are
        the controller's to take out."""
        for partition in partitions:
            leader = partition.leader
            if leader is not None and not leader.joining.isdisjoint(brokers):
                leader.keep_outside(brokers, self._clock.monotonic_ms())
                partition.advance()

    def check(self, partition: Partition, last_fetch_ms: Callable[[int], int]) -> list[str]:
        """Propose an ISR without the followers that lag; those half way there that were not named yet. To be called
        every half of replica.lag.time.max.ms. `last_fetch_ms` tells when a broker last fetched anything here."""
        leader = partition.leader
        if leader is None or not leader.followers:
            return []
        end, now, late = partition.log.log_end_offset, self._clock.monotonic_ms(), []
        for replica in leader.followers:
            leader.fetched_lately(replica, end, last_fetch_ms(replica))
            leader.judge_outsider(replica, now, self.lag_max_ms)
        partition.advance()  # one that was waited for may have stopped
        out = leader.out_of_sync(end, now, self.lag_max_ms)
        if out:
            self._propose(partition, [each for each in partition.isr if each not in out])
        at = partition.topic_partition
        behind = leader.out_of_sync(end, now, self.lag_max_ms // 2) - out
        for replica in leader.followers:
            if replica not in behind:
                self._warned.discard((at, replica))
            elif (at, replica) not in self._warned:
                self._warned.add((at, replica))
                late.append(f"{partition} at broker {replica}")
        self.consider(partition)
        return late

    def _propose(self, partition: Partition, isr: list[int]) -> None:
        leader = partition.leader
        assert leader is not None
        leader.propose_isr(isr)
        logger.info("%s: ISR %s is to become %s", partition, list(partition.isr), isr)
        self._waiting[partition.topic_partition] = _Change(partition, leader.leader_epoch, tuple(isr))
        self.on_waiting()

    # -- asking the controller ----------------------------------------------------------------------------------

    def take(self) -> tuple[Changes, AlterPartitionRequest] | None:
        """What is to be proposed now, None for nothing. It comes back through `answered` or `again`."""
        changes = {at: change for at, change in self._waiting.items() if _is_current(change)}
        self._waiting.clear()
        return (changes, self._request(changes.values())) if changes else None

    def again(self, changes: Changes) -> None:
        """They were not answered."""
        for at, change in changes.items():
            self._waiting.setdefault(at, change)

    def _request(self, changes: Iterable[_Change]) -> AlterPartitionRequest:
        topics: dict[str, TopicData] = {}
        for partition, leader_epoch, isr in changes:
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = TopicData(topic_name=partition.topic, topic_id=partition.topic_id)
            topic.partitions.append(
                PartitionData(
                    partition_index=partition.index,
                    leader_epoch=leader_epoch,
                    new_isr=list(isr),
                    new_isr_with_epochs=[BrokerState(broker_id=each) for each in isr],
                    partition_epoch=partition.partition_epoch,
                )
            )
        return AlterPartitionRequest(broker_id=self._broker_id, topics=list(topics.values()))

    def answered(self, changes: Changes, response: AlterPartitionResponse) -> bool:
        """Act on the answers; False where some have to be asked for again, after a pause."""
        names = {change.partition.topic_id: at.topic for at, change in changes.items()}
        answers = {
            TopicPartition(topic.topic_name or names.get(topic.topic_id, ""), each.partition_index): each
            for topic in response.topics
            for each in topic.partitions
        }
        repeat: Changes = {}
        for at, change in changes.items():
            if not _is_current(change):
                continue
            answer = answers.get(at)
            if answer is None or not self._settle(change, answer):
                repeat[at] = change
        self.again(repeat)
        return not repeat

    def _settle(self, change: _Change, answer: ResponsePartitionData) -> bool:
        """False where it is to be asked for again."""
        partition = change.partition
        leader = partition.leader
        assert leader is not None
        error = Errors(answer.error_code)
        if not error:
            if answer.leader_epoch == change.leader_epoch and answer.partition_epoch >= partition.partition_epoch:
                self._commit(partition, answer.isr, answer.partition_epoch)
            return True
        logger.info("%s: the controller refused the ISR %s: %s", partition, list(change.isr), error.name)
        if error in REFUSED:
            leader.commit_isr(leader.isr)
            leader.keep_outside(set(change.isr) - leader.isr, self._clock.monotonic_ms())
            partition.advance()
            return True
        if error in OVERTAKEN:
            return True
        known = self._known(partition.topic, partition.index)
        if (
            error == Errors.INVALID_UPDATE_VERSION
            and known is not None
            and known.leader_epoch == change.leader_epoch
            and known.partition_epoch > partition.partition_epoch
        ):
            self._commit(partition, known.isr, known.partition_epoch)  # it was written, but the answer was lost
            return True
        return False

    def _commit(self, partition: Partition, isr: Iterable[int], partition_epoch: int) -> None:
        partition.commit_isr(isr, partition_epoch)
        logger.info("%s: the ISR is %s", partition, list(partition.isr))
        self.consider(partition)


def _is_current(change: _Change) -> bool:
    """Not when leadership has changed since, or the controller has told another ISR."""
    leader = change.partition.leader
    return (
        leader is not None
        and leader.leader_epoch == change.leader_epoch
        and leader.in_flight == frozenset(change.isr)
    )


def _nobody() -> None:
    """Nobody carries the requests yet."""


class IsrSender:
    """Carries the requests of IsrChanges, and looks for followers that lag."""

    def __init__(self, changes: IsrChanges, controller: Controller) -> None:
        self._changes = changes
        self._controller = controller
        self._task: asyncio.Task[None] | None = None
        changes.on_waiting = self._start

    def close(self) -> None:
        """Nothing more is sent."""
        self._changes.on_waiting = _nobody
        if self._task is not None:
            self._task.cancel()

    async def check(self, partitions: Iterable[Partition], last_fetch_ms: Callable[[int], int]) -> None:
        """IsrChanges.check for all; a warning of those that begin to lag."""
        late: list[str] = []
        pace = Pace()
        for partition in list(partitions):
            late += self._changes.check(partition, last_fetch_ms)
            if pace.due():
                await pace.rest()
        if late:
            more = f" and {len(late) - NAMED_AT_MOST} more" if len(late) > NAMED_AT_MOST else ""
            logger.warning(
                "Followers fall behind and will leave the ISR %d ms after they were last at its end: %s%s",
                self._changes.lag_max_ms, ", ".join(late[:NAMED_AT_MOST]), more,
            )  # fmt: skip

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all(), name="isr changes")

    async def _send_all(self) -> None:
        failures = 0
        while (taken := self._changes.take()) is not None:
            failures = 0 if await self._send(*taken) else failures + 1
            if failures:
                await asyncio.sleep(min(RETRY_MS[1], RETRY_MS[0] << min(failures - 1, 10)) / 1000)

    async def _send(self, changes: Changes, request: AlterPartitionRequest) -> bool:
        try:
            response = await self._controller.alter_partitions(request)
            if not response.error_code:
                return self._changes.answered(changes, response)
            logger.info("The controller refused %d ISR changes: %s", len(changes), Errors(response.error_code).name)
        except (OSError, KafkaError) as error:
            logger.info("The controller did not take %d ISR changes, again soon: %s", len(changes), error)
        except Exception:
            logger.exception("%d ISR changes failed", len(changes))  # unasked, the partitions would wait for ever
        self._changes.again(changes)
        return False
