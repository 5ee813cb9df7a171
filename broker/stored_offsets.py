"""Offsets as the oldest consumers keep them (OffsetCommit and OffsetFetch version 0): in the metadata store, as text,
under /consumers/<group>/offsets/<topic>/<partition>."""

from __future__ import annotations

from pybroker.controller.store import MetadataStore, NodeExists, NoNode, StoreError
from pybroker.coordinator.offsets import Place
from pybroker.protocol.errors import Errors


def _path(group_id: str, place: Place) -> str | None:
    """None where the group's name can't be part of a path."""
    if not group_id or "/" in group_id or "\0" in group_id or group_id in (".", ".."):
        return None
    topic, partition = place
    return f"/consumers/{group_id}/offsets/{topic}/{partition}"


async def store_offset(store: MetadataStore, group_id: str, place: Place, offset: int) -> Errors:
    """Write one offset; UNKNOWN_SERVER_ERROR where that can't be done, as Kafka says."""
    path = _path(group_id, place)
    if path is None:
        return Errors.UNKNOWN_SERVER_ERROR
    data = str(offset).encode()
    try:
        try:
            await store.set(path, data)
        except NoNode:
            try:
                await store.create(path, data, parents=True)
            except NodeExists:
                await store.set(path, data)
    except StoreError:
        return Errors.UNKNOWN_SERVER_ERROR
    return Errors.NONE


async def stored_offset(store: MetadataStore, group_id: str, place: Place) -> int | None:
    """The offset, None where there is none. Raises StoreError."""
    path = _path(group_id, place)
    if path is None:
        return None
    try:
        data, _ = await store.get(path)
    except NoNode:
        return None
    text = data.decode("ascii", "replace")
    return int(text) if text.lstrip("-").isdigit() else None
