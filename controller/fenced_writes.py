"""The controller's writes, each refused by the store once another controller was elected."""

from __future__ import annotations

from pybroker.controller import paths
from pybroker.controller.outcome import WriteResult
from pybroker.controller.plan import Write
from pybroker.controller.store import Check, MetadataStore, StoreError

#: Writes sent to the store together; the next ones when these are answered.
WRITES_AT_ONCE = 2000


class Fenced(Exception):
    """Another controller was elected: a write's check of the controller epoch failed."""


class FencedWrites:
    """Writes as the controller whose election left /controller_epoch at `epoch_version`."""

    def __init__(self, store: MetadataStore) -> None:
        self.epoch_version = -1
        self._store = store

    async def write(self, writes: list[Write]) -> list[WriteResult]:
        """Each write on its own, and only while this controller's epoch is the last. Raises Fenced when it is not,
        StoreError when the store fails."""
        check = Check(paths.CONTROLLER_EPOCH, self.epoch_version)
        results: list[WriteResult] = []
        for start in range(0, len(writes), WRITES_AT_ONCE):
            transactions = [[check, write.op] for write in writes[start : start + WRITES_AT_ONCE]]
            for result in await self._store.multi_many(transactions):
                if not isinstance(result, StoreError):
                    results.append(result[1])
                elif result.index == 0:
                    raise Fenced
                else:
                    results.append(result)
        return results
