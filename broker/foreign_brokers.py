"""Which brokers of the cluster are not ours: while there is one, what only we can do is off.

Apache Kafka beside us knows neither the consumer protocol (KIP-848) with ZooKeeper nor settings of groups, and may have
to lead, load or answer at any time what we have written. Ours tell themselves by a field in their registration
(paths.OWN_FIELD). Each switch is one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pybroker.controller import paths
from pybroker.controller.store import MetadataStore, SessionState, StoreClosed, StoreError, WatchEvent

logger = logging.getLogger(__name__)

WHAT = "the consumer protocol (KIP-848) and settings of groups"


class ForeignBrokers:
    """`ids` are the registered brokers that are not ours: none where nothing was loaded, as on the embedded store.

    `load` before clients come, `run` follows changes until it is cancelled.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.ids: frozenset[int] = frozenset()
        self.on_change: list[Callable[[], None]] = []
        self._changed = asyncio.Event()

    @property
    def none(self) -> bool:
        return not self.ids

    async def load(self) -> None:
        """Raises StoreError."""
        self._store.on_session(self._on_session)
        await self._read()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._read()
            except StoreClosed:
                return
            except StoreError as error:
                # A new session, or the connection's return, wakes this again.
                logger.warning("The kinds of brokers can't be read at the moment: %s", error)

    async def _read(self) -> None:
        names = await self._store.children(paths.BROKER_IDS, self._on_watch)
        nodes = await self._store.get_many([f"{paths.BROKER_IDS}/{name}" for name in names])
        self._take({
            int(name) for name, node in zip(names, nodes, strict=True) if node is not None and not _is_ours(node[0])
        })  # fmt: skip

    def _take(self, ids: set[int]) -> None:
        before, self.ids = self.ids, frozenset(ids)
        if bool(before) == bool(ids):
            return
        if ids:
            others = ", ".join(map(str, sorted(ids)))
            logger.info("Brokers %s are not of pybroker: off from now on: %s", others, WHAT)
        else:
            logger.info("All brokers are of pybroker: on from now on: %s", WHAT)
        for listener in self.on_change:
            listener()

    def _on_watch(self, event: WatchEvent) -> None:
        self._changed.set()

    def _on_session(self, state: SessionState) -> None:
        if state == "connected":
            self._changed.set()


def _is_ours(data: bytes) -> bool:
    try:
        return paths.decode_broker(-1, data, -1).release is not None
    except ValueError:
        return False
