"""Whether this broker is fit to serve: registered, by a session that answers, and in sync with all of its replicas.
Looked at in regular intervals.

It serves on while ZooKeeper can't be reached, as Apache Kafka does; who runs the cluster wants to know all the same.
Each change is one line in the log. `pybroker health` (`broker/health_command.py`) asks from outside.
"""

from __future__ import annotations

import asyncio
import logging

from pybroker.broker.metadata_cache import MetadataCache
from pybroker.controller import paths
from pybroker.controller.store import MetadataStore, NodeStat, StoreClosed, StoreError
from pybroker.protocol.pace import Pace
from pybroker.replication.manager import ReplicaManager

logger = logging.getLogger(__name__)

FIT = ""
SILENT = "ZooKeeper does not answer"
GONE = "its node in ZooKeeper is gone"
FOREIGN = "its node in ZooKeeper belongs to another session"
BEHIND = "not all of its replicas are in sync"


class Health:
    """`trouble` is empty while the broker is registered and its session answers, else it says what is wrong."""

    def __init__(
        self,
        store: MetadataStore,
        replicas: ReplicaManager,
        cache: MetadataCache,
        broker_id: int,
        interval_seconds: float,
    ) -> None:
        self._store = store
        self._replicas = replicas
        self._cache = cache
        self._broker_id = broker_id
        self._interval = interval_seconds
        self.trouble = FIT

    @property
    def fit(self) -> bool:
        return self.trouble == FIT

    async def run(self) -> None:
        """Until it is cancelled or the store is closed."""
        asked: asyncio.Future[NodeStat | None] | None = None
        try:
            while True:
                if asked is None:
                    asked = asyncio.ensure_future(self._store.exists(paths.broker(self._broker_id)))
                began = asyncio.get_running_loop().time()
                done, _ = await asyncio.wait({asked}, timeout=self._interval)
                try:
                    self._note((self._judge(asked.result()) or await self._look_at_replicas()) if done else SILENT)
                except StoreClosed:
                    return
                except StoreError as error:
                    self._note(str(error))
                if done:
                    asked = None
                    await asyncio.sleep(max(0.0, began + self._interval - asyncio.get_running_loop().time()))
        finally:
            if asked is not None:
                asked.cancel()

    def _judge(self, stat: NodeStat | None) -> str:
        if stat is None:
            return GONE
        return FIT if stat.ephemeral_owner == self._store.session_id else FOREIGN

    async def _look_at_replicas(self) -> str:
        """BEHIND for a replica outside of the in-sync set of a partition that has a leader."""
        pace = Pace()
        for partition in list(self._replicas):
            known = self._cache.partition(partition.topic, partition.index)
            if partition.leader is None and known and known.leader >= 0 and self._broker_id not in known.isr:
                return BEHIND
            if pace.due():
                await pace.rest()
        return FIT

    def _note(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble:
            logger.warning("Broker %d is not fit to serve as a member of the cluster: %s", self._broker_id, trouble)
        else:
            logger.info("Broker %d is a healthy member of the cluster again", self._broker_id)
