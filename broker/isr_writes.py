"""ISR changes below inter.broker.protocol.version 2.7: a partition's leader writes its state node itself, and tells the
controller by a node under /isr_change_notification (Kafka: ZkIsrManager, ReplicationUtils.updateLeaderAndIsr).

A write expects the version that the leader knows, so one that the controller has deposed is refused. The controller
epoch in the state stays: it is that of the last election.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from pybroker.broker.isr_answers import answers_by_name
from pybroker.controller import paths
from pybroker.controller.paths import LeaderAndIsr
from pybroker.controller.store import BadVersion, MetadataStore, NodeStat, NoNode, SetData, StoreClosed, StoreError
from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse, PartitionData
from pybroker.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

#: What changed is told together, this long after the first change; Kafka lets five seconds pass.
TELL_SECONDS = 1.0
#: Of one notification; nodes are limited to a megabyte.
PARTITIONS_AT_ONCE = 2000

Wanted = dict[TopicPartition, PartitionData]
Found = dict[TopicPartition, LeaderAndIsr | Errors]


class IsrWrites:
    """Takes what an AlterPartition asks and answers as the controller would, writing the nodes itself."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._untold: dict[TopicPartition, None] = {}
        self._telling: asyncio.Task[None] | None = None

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """An answer for each partition. Raises ConnectionError where the store can't be asked."""
        wanted = {
            TopicPartition(topic.topic_name, each.partition_index): each
            for topic in request.topics
            for each in topic.partitions
        }
        try:
            answers = await self._read(wanted)
            answers |= await self._write(wanted, answers)
        except StoreError as error:
            raise ConnectionError(f"the metadata store: {error}") from error
        self._tell(at for at, answer in answers.items() if isinstance(answer, LeaderAndIsr))
        return answers_by_name(answers)

    async def _read(self, wanted: Wanted) -> Found:
        """The states as they are now, or why there is none for us."""
        nodes = await self._store.get_many([paths.partition_state(at.topic, at.partition) for at in wanted])
        return {at: self._judge(asked, node) for (at, asked), node in zip(wanted.items(), nodes, strict=True)}

    def _judge(self, asked: PartitionData, node: tuple[bytes, NodeStat] | None) -> LeaderAndIsr | Errors:
        if node is None:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        try:
            state = paths.decode_partition_state(node[0], node[1].version)
        except ValueError as error:
            logger.error("A partition's state can't be read: %s", error)
            return Errors.UNKNOWN_SERVER_ERROR
        if state.leader_epoch != asked.leader_epoch or state.leader != self._broker_id:
            return Errors.FENCED_LEADER_EPOCH
        return state

    async def _write(self, wanted: Wanted, found: Found) -> Found:
        """Changes the states that are still what their leader knows. One with another version was written by this
        leader, which did not hear of it: it learns from the answer what it wrote."""
        changes: dict[TopicPartition, LeaderAndIsr] = {}
        for at, state in found.items():
            isr, known = tuple(wanted[at].new_isr), wanted[at].partition_epoch
            if isinstance(state, LeaderAndIsr) and state.partition_epoch == known and state.isr != isr:
                changes[at] = state._replace(isr=isr, partition_epoch=known + 1)
        writes = [
            [
                SetData(
                    paths.partition_state(at.topic, at.partition),
                    paths.encode_partition_state(new),
                    new.partition_epoch - 1,
                )
            ]
            for at, new in changes.items()
        ]
        results = await self._store.multi_many(writes)
        return {at: _outcome(new, result) for (at, new), result in zip(changes.items(), results, strict=True)}

    # -- telling the controller

    def _tell(self, changed: Iterable[TopicPartition]) -> None:
        self._untold.update(dict.fromkeys(changed))
        if self._untold and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell_later(), name="isr change notification")

    async def _tell_later(self) -> None:
        while self._untold:
            await asyncio.sleep(TELL_SECONDS)
            some = list(self._untold)[:PARTITIONS_AT_ONCE]
            for at in some:
                del self._untold[at]
            try:
                await self._store.create(paths.isr_change(), paths.encode_partition_list(some), sequential=True)
            except StoreClosed:
                return
            except StoreError as error:
                logger.warning("The controller is told later of %d ISR changes: %s", len(some), error)
                self._untold.update(dict.fromkeys(some))

    async def close(self) -> None:
        """Nothing more is told."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)


def _outcome(new: LeaderAndIsr, result: object) -> LeaderAndIsr | Errors:
    if isinstance(result, NoNode):
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(result, BadVersion):
        return Errors.INVALID_UPDATE_VERSION
    if isinstance(result, StoreError):
        raise result
    return new
