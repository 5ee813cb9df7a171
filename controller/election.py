"""Becoming the controller: /controller and the next /controller_epoch are written in one multi, so of many brokers that
try at the same time one gets both (Kafka: KafkaZkClient.registerControllerAndIncrementControllerEpoch)."""

from __future__ import annotations

from typing import NamedTuple

from pybroker.controller import paths
from pybroker.controller.store import BadVersion, Create, MetadataStore, NodeExists, NoNode, SetData


class Office(NamedTuple):
    """What a won election gave: the controller epoch, and the version of /controller_epoch that fences writes."""

    epoch: int
    epoch_version: int


async def claim(store: MetadataStore, broker_id: int, timestamp_ms: int) -> Office | None:
    """Tries to become the controller; None where another broker was faster. Raises StoreError."""
    try:
        data, stat = await store.get(paths.CONTROLLER_EPOCH)
        before, version = paths.decode_epoch(data), stat.version
    except NoNode:
        before, version = 0, 0
        try:
            await store.create(paths.CONTROLLER_EPOCH, paths.encode_epoch(0))
        except NodeExists:
            return None
    epoch = before + 1
    try:
        await store.multi(
            [
                Create(paths.CONTROLLER, paths.encode_controller(broker_id, timestamp_ms), ephemeral=True),
                SetData(paths.CONTROLLER_EPOCH, paths.encode_epoch(epoch), version),
            ]
        )
    except (NodeExists, BadVersion):
        return None
    return Office(epoch, version + 1)
