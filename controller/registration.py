"""How a broker joins the cluster: the containers every broker expects, the cluster's id, its own node."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from pybroker.controller import paths
from pybroker.controller.paths import BrokerNode
from pybroker.controller.store import (
    Create,
    MetadataStore,
    NodeExists,
    NodeStat,
    NoNode,
    SetData,
    StoreError,
    WatchEvent,
)
from pybroker.protocol.uuids import random_uuid, uuid_to_text

logger = logging.getLogger(__name__)

#: How long a broker waits for the node of its session before: after kill -9 it stays until ZooKeeper gives the session
#: up, which may take longer than zookeeper.session.timeout.ms, since ZooKeeper has bounds of its own.
OLD_SESSION_SECONDS = 45.0


class RegistrationError(Exception):
    """The broker can't join; the message says why and what to do."""


async def prepare_store(store: MetadataStore, known_cluster_id: str | None, *, own_store: bool) -> str:
    """Makes the containers that are missing and the cluster id when there is none; returns the cluster id.

    `known_cluster_id` is what meta.properties says. A new store of the broker's own takes it over (`own_store`: the
    directory was another installation's); in a shared store it must agree, else RegistrationError.
    """
    wanted = list(paths.PERSISTENT)
    found = await store.get_many([paths.CLUSTER_ID, *wanted])
    creations: list[Create] = []
    for path, existing in zip(wanted, found[1:], strict=True):
        if existing is None:
            creations += [Create(each) for each in _with_parents(path) if Create(each) not in creations]
    if found[0] is None:
        new_id = known_cluster_id if known_cluster_id and own_store else uuid_to_text(random_uuid())
        creations += [Create("/cluster"), Create(paths.CLUSTER_ID, paths.encode_cluster_id(new_id))]
    for result in await store.multi_many([[creation] for creation in creations]):
        if isinstance(result, StoreError) and not isinstance(result, NodeExists):
            raise result
    data, _ = found[0] or await store.get(paths.CLUSTER_ID)
    cluster_id = paths.decode_cluster_id(data)
    if known_cluster_id and known_cluster_id != cluster_id:
        raise RegistrationError(
            f"The cluster's id is {cluster_id}, but meta.properties in the log directories names {known_cluster_id}. "
            "The broker would join the wrong cluster: check zookeeper.connect and log.dirs. If the directories are to "
            f"belong to this cluster, `pybroker log repair DIR --cluster-id {cluster_id}` corrects meta.properties."
        )
    return cluster_id


async def register(
    store: MetadataStore, node: BrokerNode, timestamp_ms: int, wait_seconds: float = OLD_SESSION_SECONDS
) -> BrokerNode:
    """Announces the broker and returns its node with the broker epoch (the czxid). Call it when the listeners accept.

    A node of this very session is written anew. While another session holds the id, most likely this broker's before a
    crash, it waits for that to end; Apache Kafka gives up at once. Raises RegistrationError when the id is still held
    after `wait_seconds`.
    """
    path = paths.broker(node.broker_id)
    deadline = asyncio.get_running_loop().time() + wait_seconds
    announced = False
    while True:
        try:
            _, stat = await store.multi(
                [Create(path, None, ephemeral=True), SetData(path, paths.encode_broker(node, timestamp_ms))]
            )
        except NodeExists:
            existing = await store.exists(path)
            if existing is not None and existing.ephemeral_owner == store.session_id:
                await store.set(path, paths.encode_broker(node, timestamp_ms))
                return replace(node, epoch=existing.czxid)
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            if not announced:
                announced = True
                logger.warning(
                    "Broker id %d is registered by another session (%s): waiting up to %.0f s for its end",
                    node.broker_id, await _holder(store, node.broker_id), left,
                )  # fmt: skip
            await _deleted(store, path, left)
        else:
            assert isinstance(stat, NodeStat)
            return replace(node, epoch=stat.czxid)
    raise RegistrationError(
        f"A broker with id {node.broker_id} is registered already ({await _holder(store, node.broker_id)}). "
        "Stop it, or give this one another broker.id."
    )


async def _deleted(store: MetadataStore, path: str, seconds: float) -> None:
    """Returns when the node is gone, or after that time."""
    gone = asyncio.Event()

    def changed(event: WatchEvent) -> None:
        gone.set()

    if await store.exists(path, changed) is not None:
        try:
            await asyncio.wait_for(gone.wait(), seconds)
        except TimeoutError:
            pass


async def _holder(store: MetadataStore, broker_id: int) -> str:
    try:
        data, stat = await store.get(paths.broker(broker_id))
        holder = paths.decode_broker(broker_id, data, stat.czxid)
    except NoNode:
        return "it has just gone"
    except (StoreError, ValueError):
        return "its address can't be read"
    return ", ".join(f"{each.listener}://{each.host}:{each.port}" for each in holder.endpoints)


def _with_parents(path: str) -> list[str]:
    parts = path.split("/")[1:]
    return ["/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
