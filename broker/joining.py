"""The last step of a start: what clients may be told of the cluster has come from the controller.

In a cluster the controller can tell this broker only when it accepts connections, and clients come over them as well.
One that hears of no such topic may give up what it has for it, so Metadata waits (MetadataCache.complete).
"""

from __future__ import annotations

import asyncio
import logging

from pybroker.broker.controller_orders import ControllerOrders
from pybroker.broker.metadata_cache import MetadataCache
from pybroker.controller import paths
from pybroker.controller.store import MetadataStore, StoreError

logger = logging.getLogger(__name__)

FIRST_METADATA_SECONDS = 30.0
FIRST_TOPICS_SECONDS = 5.0  # topics of which nobody tells may have no replica alive


async def know_the_cluster(orders: ControllerOrders, cache: MetadataCache, store: MetadataStore) -> None:
    """Returns when the controller has told of brokers and topics; a new one tells of brokers first, then of all topics.
    After FIRST_METADATA_SECONDS without a word, or FIRST_TOPICS_SECONDS without topics, at once, with a warning."""
    try:
        async with asyncio.timeout(FIRST_METADATA_SECONDS):
            await orders.metadata_known.wait()
    except TimeoutError:
        logger.warning("No controller has told of the cluster in %.0f s", FIRST_METADATA_SECONDS)
    else:
        if not cache.complete.is_set():
            await _know_topics(cache, store)
    cache.complete.set()


async def _know_topics(cache: MetadataCache, store: MetadataStore) -> None:
    try:
        topics = set(await store.children(paths.TOPICS)) - set(await store.children(paths.DELETE_TOPICS))
    except StoreError as error:
        logger.warning("Which topics there are can't be read: %s", error)
        return
    if topics and not await cache.wait_until(topics, lambda: bool(cache.topics), FIRST_TOPICS_SECONDS):
        logger.warning("No controller has told of any topic in %.0f s", FIRST_TOPICS_SECONDS)
