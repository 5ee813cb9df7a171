"""Producer ids: every broker takes blocks of a thousand and hands them out one by one.

`/latest_producer_id_block` names the block given out last; the next one starts behind it and is taken by writing the
node with its version expected. Since inter.broker.protocol.version 3.0 the controller writes it when a broker asks for
a block; before, and where there is one broker, each takes its own (Kafka: ZkProducerIdManager, RPCProducerIdManager).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pybroker.controller import paths
from pybroker.controller.paths import ProducerIdBlock
from pybroker.controller.store import BadVersion, MetadataStore, StoreError
from pybroker.protocol.errors import Errors, KafkaError

BLOCK_SIZE = 1000
#: The next block is fetched when this much of the current one is used.
PREFETCH_AT = BLOCK_SIZE * 9 // 10
#: How long producers wait for a block that is fetched, from its beginning: what they sent behind their question waits
#: as well, and many that wait would take up the broker's request slots.
WAIT_SECONDS = 1.0
_LAST_ID = 2**63 - 1

#: Gets the next block for this broker. Raises StoreError, OSError; KafkaError when all ids are used.
TakeBlock = Callable[[], Awaitable[ProducerIdBlock]]


async def allocate_block(store: MetadataStore, broker_id: int) -> ProducerIdBlock:
    """Takes the next block for this broker. Raises StoreError; KafkaError UNKNOWN_SERVER_ERROR when all are used."""
    while True:
        data, stat = await store.get(paths.PRODUCER_ID_BLOCK)
        first = paths.decode_producer_id_block(data).last + 1 if data else 0
        if first > _LAST_ID - BLOCK_SIZE:
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, "Exhausted all producer ids.")
        block = ProducerIdBlock(broker_id, first, first + BLOCK_SIZE - 1)
        try:
            await store.set(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(block), stat.version)
        except BadVersion:
            continue  # another broker took this one
        return block


class ProducerIds:
    """Hands out producer ids that no other broker hands out."""

    def __init__(self, take_block: TakeBlock) -> None:
        self._take = take_block
        self._next = 0
        self._last = -1
        self._following: asyncio.Task[ProducerIdBlock] | None = None
        self._patience_ends = 0.0  # by the loop's clock: who still waits for that block then is sent away

    async def next_producer_id(self) -> int:
        """A new id. Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS (clients ask again) when no block could be had."""
        while self._next > self._last:
            await self._take_block()
        producer_id = self._next
        self._next += 1
        if self._next > self._last - (BLOCK_SIZE - PREFETCH_AT) and self._following is None:
            self._fetch_block()
        return producer_id

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _take_block(self) -> None:
        following = self._following or self._fetch_block()
        patience = max(0.0, self._patience_ends - asyncio.get_running_loop().time())
        await asyncio.wait([following], timeout=patience)
        if not following.done():
            raise KafkaError(Errors.COORDINATOR_LOAD_IN_PROGRESS, "no producer id block: none came yet")
        # Of several that waited here the first takes the block over, or sees to it that another is asked for.
        first = self._following is following
        if first:
            self._following = None
        try:
            block = following.result()
        except (StoreError, OSError, ValueError) as error:
            raise KafkaError(Errors.COORDINATOR_LOAD_IN_PROGRESS, f"no producer id block: {error}") from error
        if first:
            self._next, self._last = block.first, block.last

    def _fetch_block(self) -> asyncio.Task[ProducerIdBlock]:
        self._patience_ends = asyncio.get_running_loop().time() + WAIT_SECONDS
        self._following = asyncio.create_task(self._block(), name="producer-id-block")
        self._following.add_done_callback(_heard)
        return self._following

    async def _block(self) -> ProducerIdBlock:
        return await self._take()


def _heard(task: asyncio.Task[ProducerIdBlock]) -> None:
    """Who waits for the block gets its failure; maybe nobody does yet, or ever."""
    if not task.cancelled():
        task.exception()
