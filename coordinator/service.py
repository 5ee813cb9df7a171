"""The group coordinator as handlers use it: finds a group's partition and its shard, and runs what that decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pybroker.coordinator.classic_join import Join, refused
from pybroker.coordinator.effects import Effects, Reply
from pybroker.coordinator.group import CONSUMER
from pybroker.coordinator.offsets import CommittedOffset, Place
from pybroker.coordinator.partitioner import partition_for
from pybroker.coordinator.runtime import Hosted, PartitionLogs, Runtime
from pybroker.coordinator.settings import GroupSettings
from pybroker.coordinator.shard import Committer, GroupShard, OffsetState
from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.describe_groups import DescribedGroup
from pybroker.protocol.messages.join_group import JoinGroupRequest
from pybroker.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from pybroker.protocol.messages.list_groups import ListedGroup
from pybroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from pybroker.protocol.pace import Pace
from pybroker.protocol.timer import Timer, TimerTask

if TYPE_CHECKING:
    from pybroker.coordinator.consumer.heartbeat import Beat
    from pybroker.coordinator.consumer.shard import ConsumerGroups
    from pybroker.coordinator.group import Group
    from pybroker.protocol.messages.consumer_group_describe import DescribedGroup as ConsumerGroupDescription

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"


class GroupCoordinator:
    """One per broker. `partitions` tells how many partitions the offsets topic has, or will have."""

    def __init__(
        self,
        logs: PartitionLogs,
        partitions: Callable[[], int],
        settings: GroupSettings,
        clock: Clock,
        timer: Timer,
        *,
        write_timeout_ms: int = 5000,
        acks: int = -1,
        codec: int = 0,
        load_bytes: int = 5 * 1024 * 1024,
        expire_every_ms: int = 600_000,
        new_consumer: Callable[[dict[str, Group]], ConsumerGroups] | None = None,
        may_serve_consumer: Callable[[], bool] = lambda: True,
    ) -> None:
        """`new_consumer` makes what serves the consumer protocol in a partition, where the protocol is enabled;
        whether it may be served just now says `may_serve_consumer`."""
        self.runtime: Runtime[GroupShard] = Runtime(
            OFFSETS_TOPIC, logs, lambda: GroupShard(settings, clock, new_consumer=new_consumer), clock, timer,
            write_timeout_ms=write_timeout_ms, acks=acks, codec=codec, load_bytes=load_bytes,
        )  # fmt: skip
        self._knows_consumer_protocol = new_consumer is not None
        self._may_serve_consumer = may_serve_consumer
        self._partitions = partitions
        self._timer = timer
        self._expire_every_ms = expire_every_ms
        self._expiring: asyncio.Task[None] | None = None
        self._expiry: TimerTask = timer.schedule(expire_every_ms, self._expire)

    def close(self) -> None:
        """The broker stops."""
        self._expiry.cancel()
        if self._expiring is not None:
            self._expiring.cancel()
        self.runtime.close()

    @property
    def serves_consumer_protocol(self) -> bool:
        return self._knows_consumer_protocol and self._may_serve_consumer()

    def served_protocols_changed(self) -> None:
        """Groups of the consumer protocol that can't be served any more are named: their members get errors."""
        if self.serves_consumer_protocol:
            return
        for hosted in self.runtime:
            for group in hosted.shard.groups.values():
                if group.type == CONSUMER and not group.is_empty:
                    logger.error(
                        "Group %s is of the consumer protocol (KIP-848), which is not served beside Apache Kafka: "
                        "its members can't go on until all brokers are of pybroker, or they use the classic protocol",
                        group.group_id,
                    )

    def partition_for(self, group_id: str) -> int:
        """Raises KafkaError COORDINATOR_NOT_AVAILABLE while there is no offsets topic to count."""
        count = self._partitions()
        if not count:
            raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)
        return partition_for(group_id, count)

    def hosted(self, group_id: str, *, empty_id: bool = False) -> Hosted[GroupShard]:
        """Where the group lives. Raises KafkaError INVALID_GROUP_ID (for an empty id, unless `empty_id`: offsets were
        once kept without one), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        if not group_id and not empty_id:
            raise KafkaError(Errors.INVALID_GROUP_ID)
        return self.runtime.get(self.partition_for(group_id))

    # -- members -------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client_id: str | None, client_host: str, reply: Reply) -> None:
        try:
            hosted = self.hosted(request.group_id)
        except KafkaError as error:
            reply.set(refused(error.code, request.member_id))
            return
        effects = Effects()
        hosted.shard.join(Join(request, client_id, client_host, reply), effects)
        hosted.run(effects)

    def sync(self, request: SyncGroupRequest, reply: Reply) -> None:
        try:
            hosted = self.hosted(request.group_id)
        except KafkaError as error:
            code = error.code
            if code == Errors.COORDINATOR_LOAD_IN_PROGRESS:
                code = Errors.REBALANCE_IN_PROGRESS  # old clients don't expect the other here; joining anew is right
            reply.set(SyncGroupResponse(error_code=code))
            return
        effects = Effects()
        hosted.shard.sync(request, reply, effects)
        hosted.run(effects)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Errors:
        try:
            hosted = self.hosted(group_id)
        except KafkaError as error:
            # While the group is loading nobody can say that the member is not in it.
            return Errors.NONE if error.code == Errors.COORDINATOR_LOAD_IN_PROGRESS else error.code
        effects = Effects()
        answer = hosted.shard.heartbeat(group_id, member_id, instance_id, generation, effects)
        if effects.timers:
            hosted.run(effects)
        return answer

    def leave(self, request: LeaveGroupRequest, leaving: Sequence[MemberIdentity]) -> LeaveGroupResponse:
        """Raises KafkaError as `hosted`."""
        hosted = self.hosted(request.group_id)
        effects = Effects()
        response = hosted.shard.leave(request, leaving, effects)
        hosted.run(effects)
        return response

    def consumer_heartbeat(self, beat: Beat, reply: Reply) -> None:
        """Answers a ConsumerGroupHeartbeatResponse. Raises KafkaError as `hosted`, and UNSUPPORTED_VERSION where the
        consumer protocol is not served."""
        if not self.serves_consumer_protocol:
            raise KafkaError(Errors.UNSUPPORTED_VERSION)
        hosted = self.hosted(beat.request.group_id, empty_id=True)
        assert hosted.shard.consumer is not None
        effects = Effects()
        hosted.shard.consumer.heartbeat(beat, reply, effects)
        hosted.run(effects)

    def consumer_describe(self, group_id: str) -> ConsumerGroupDescription:
        """Raises KafkaError as `consumer_heartbeat`."""
        if not self.serves_consumer_protocol:
            raise KafkaError(Errors.UNSUPPORTED_VERSION)
        shard = self.hosted(group_id).shard
        assert shard.consumer is not None
        return shard.consumer.describe(group_id)

    # -- offsets -------------------------------------------------------------------------------------------------

    def commit(
        self,
        who: Committer,
        wanted: Sequence[tuple[Place, CommittedOffset]],
        reply: Reply,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Answers a list of Errors, one for each that is wanted."""
        try:
            hosted = self.hosted(who.group_id, empty_id=producer is None)
        except KafkaError as error:
            reply.set([error.code] * len(wanted))
            return
        effects = Effects()
        hosted.shard.commit(who, wanted, reply, effects, producer)
        hosted.run(effects)

    def fetch_offsets(
        self,
        group_id: str,
        places: Iterable[Place] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> list[tuple[Place, OffsetState]]:
        """Raises KafkaError as `hosted`, and for a member that is not what it says."""
        shard = self.hosted(group_id, empty_id=True).shard
        error = shard.check_fetch(group_id, member_id, member_epoch)
        if error:
            raise KafkaError(error)
        return list(shard.fetch(group_id, places, require_stable))

    def delete_offsets(self, group_id: str, places: Sequence[Place]) -> list[Errors]:
        """An error for each place. Raises KafkaError for the whole."""
        hosted = self.hosted(group_id)
        effects = Effects()
        error, errors = hosted.shard.delete_offsets(group_id, places, effects)
        hosted.run(effects)
        if error:
            raise KafkaError(error)
        return errors

    def end_transaction(self, producer_id: int, partitions: Iterable[int], commit: bool) -> None:
        """Markers of a transaction are in these partitions of the offsets topic."""
        for index in partitions:
            hosted = self.runtime.hosted.get(index)
            if hosted is not None:
                hosted.shard.end_transaction(producer_id, commit)

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """What was committed for them is void."""
        for topic in topics:
            for hosted in self.runtime:
                effects = Effects()
                hosted.shard.topic_deleted(topic, effects)
                hosted.run(effects)

    # -- groups --------------------------------------------------------------------------------------------------

    def delete_group(self, group_id: str) -> Errors:
        try:
            hosted = self.hosted(group_id, empty_id=True)
        except KafkaError as error:
            return error.code
        effects = Effects()
        error_code = hosted.shard.delete_group(group_id, effects)
        hosted.run(effects)
        return error_code

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        try:
            return self.hosted(group_id, empty_id=True).shard.describe(group_id, version)
        except KafkaError as error:
            return DescribedGroup(error_code=error.code, group_id=group_id)

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> tuple[Errors, list[ListedGroup]]:
        """Those coordinated here; filters know no case, and an empty one lets everything pass."""
        wanted_states = {state.lower() for state in states}
        wanted_types = {each.lower() for each in types}
        found = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state_name,
                group_type=group.type,
            )
            for hosted in self.runtime
            for group in hosted.shard.groups.values()
            if (not wanted_states or group.state_name.lower() in wanted_states)
            and (not wanted_types or group.type in wanted_types)
        ]
        loading = self.runtime.is_loading
        return Errors.COORDINATOR_LOAD_IN_PROGRESS if loading else Errors.NONE, found

    # -- time ----------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        self._expiry = self._timer.schedule(self._expire_every_ms, self._expire)
        if self._expiring is None or self._expiring.done():
            self._expiring = asyncio.get_running_loop().create_task(self.expire_offsets(), name="expiry of offsets")

    async def expire_offsets(self) -> None:
        """Forget what is over, group by group."""
        pace = Pace()
        for hosted in self.runtime:
            for group_id in list(hosted.shard.groups):
                effects = Effects()
                hosted.shard.expire(group_id, effects)
                hosted.run(effects)
                if pace.due():
                    await pace.rest()
