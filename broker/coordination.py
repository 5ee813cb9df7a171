"""When coordinators are built: with the first partition of their topic that this broker leads, or the first request.

Their modules take a tenth of a start's time, and a broker that has just been started may not need them. So what the
controller says of the topic meanwhile is noted, and made good when the listeners are open.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError

if TYPE_CHECKING:
    from pybroker.coordinator.service import GroupCoordinator
    from pybroker.replication.manager import ReplicaManager
    from pybroker.replication.partition import Partition

OFFSETS_TOPIC = "__consumer_offsets"
STEP_SECONDS = 0.05
# What coordinators and the first requests of a group need: imported while nothing else happens, one in a step.
_MODULES = (
    *(f"pybroker.protocol.messages.{name}" for name in ("offset_commit", "group_metadata", "join_group", "sync_group")),
    *(f"pybroker.protocol.messages.{name}" for name in ("leave_group", "describe_groups", "list_groups", "heartbeat")),
    *(f"pybroker.protocol.messages.{name}" for name in ("find_coordinator", "offset_fetch")),
    "pybroker.coordinator.service",
    "pybroker.broker.coordinators",
)


class Coordination:
    """The coordinator of groups, made by `build` when it is first needed; follows the leadership of its topic."""

    __slots__ = ("_begun", "_build", "_groups", "_loop", "_waiting")

    def __init__(
        self, replicas: ReplicaManager, loop: asyncio.AbstractEventLoop, build: Callable[[], GroupCoordinator]
    ) -> None:
        self._build = build
        self._loop = loop
        self._groups: GroupCoordinator | None = None
        self._waiting: dict[int, Partition] = {}
        self._begun = False
        replicas.listeners.append(self._follow)

    @property
    def groups(self) -> GroupCoordinator:
        found = self._groups
        if found is None:
            found = self._groups = self._build()
            waiting, self._waiting = self._waiting, {}
            for partition in waiting.values():
                self._follow(partition)
        return found

    def begin(self) -> None:
        """Clients can come: load what this broker coordinates, or at least the modules for it, in idle steps."""
        self._begun = True
        if self._waiting:
            self._loop.call_soon(lambda: self.groups)
        else:
            self._loop.call_later(STEP_SECONDS, self._import_next, iter(_MODULES))

    def _import_next(self, modules: Iterator[str]) -> None:
        name = next(modules, None)
        if name is not None and self._begun:
            importlib.import_module(name)
            self._loop.call_later(STEP_SECONDS, self._import_next, modules)

    def served_protocols_changed(self) -> None:
        """The consumer protocol has gone on or off for this broker."""
        if self._groups is not None:
            self._groups.served_protocols_changed()

    def close(self) -> None:
        """Answers those who wait for a rebalance."""
        self._begun = False
        if self._groups is not None:
            self._groups.close()

    def _follow(self, partition: Partition) -> None:
        """A partition is led by another broker than before, or by none."""
        if partition.topic != OFFSETS_TOPIC:
            return
        if self._groups is None:
            if not self._waiting and self._begun:
                self._loop.call_soon(lambda: self.groups)
            self._waiting[partition.index] = partition
            return
        runtime = self._groups.runtime
        if partition.leader is None:
            runtime.resigned(partition.index)
            return
        try:
            runtime.elected(partition.index, partition.leader_epoch)
        except KafkaError as error:
            if error.code != Errors.NOT_LEADER_OR_FOLLOWER:
                raise
