"""Settings that live in the metadata store: of topics, brokers, users, clients, ips; and of groups, which Kafka has in
KRaft only.

All of them are read once at start and kept in memory. A change writes the entity's node and then a notification
/config/changes/config_change_N; every broker watches those and reads the named entity again. Old notifications are
removed by whoever reads them, 15 minutes after it first saw them (Kafka's change.expiration).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from pybroker.controller import paths
from pybroker.controller.store import (
    BadVersion,
    Check,
    MetadataStore,
    NodeExists,
    NoNode,
    SessionState,
    SetData,
    StoreClosed,
    StoreError,
    WatchEvent,
)
from pybroker.protocol.clock import Clock
from pybroker.protocol.errors import Errors, KafkaError

logger = logging.getLogger(__name__)

ENTITY_TYPES = ("topics", "brokers", "users", "clients", "ips", "groups")
NOTIFICATION_EXPIRY_MS = 15 * 60 * 1000
_EMPTY: Mapping[str, str] = MappingProxyType({})

Listener = Callable[[str, Mapping[str, str]], object]
"""Called with an entity's name (without its type) and all settings that it has now."""


class ConfigRepository:
    """See the module's text. `load` before `run`; `run` follows changes until it is cancelled.

    An entity's path is its type and name as in a notification: topics/t, brokers/<default>, users/a/clients/c.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entities: dict[str, dict[str, str]] = {}
        self._read: set[str] = set()  # entities that were looked for, with settings or without
        self._listeners: dict[str, list[Listener]] = {entity_type: [] for entity_type in ENTITY_TYPES}
        self._changed = asyncio.Event()
        self._outdated = False
        self._seen: dict[str, int] = {}

    # -- reading

    def get(self, entity_path: str) -> Mapping[str, str]:
        """The settings of one entity, empty when it has none."""
        return self._entities.get(entity_path, _EMPTY)

    def topic(self, name: str) -> Mapping[str, str]:
        return self._entities.get(f"topics/{name}", _EMPTY)

    def topics(self) -> dict[str, Mapping[str, str]]:
        """The settings of every topic that has any."""
        return self.all_of("topics")

    def all_of(self, entity_type: str) -> dict[str, Mapping[str, str]]:
        """The settings of every entity of a type that has any, by its name as in its path."""
        prefix = f"{entity_type}/"
        return {path.removeprefix(prefix): found for path, found in self._entities.items() if path.startswith(prefix)}

    def broker(self, broker_id: int) -> Mapping[str, str]:
        return self._entities.get(f"brokers/{broker_id}", _EMPTY)

    def broker_defaults(self) -> Mapping[str, str]:
        return self._entities.get(f"brokers/{paths.DEFAULT_ENTITY}", _EMPTY)

    def knows(self, entity_path: str) -> bool:
        """Whether an entity was read, or found to have no settings; else `learn` it."""
        return entity_path in self._read

    def on_change(self, entity_type: str, listener: Listener) -> None:
        """Call back on the loop when an entity of this type (one of ENTITY_TYPES) has got other settings."""
        self._listeners[entity_type].append(listener)

    # -- following the store

    async def load(self) -> None:
        """Read everything. What is written from now on is noticed by `run`."""
        self._store.on_session(self._on_session)
        await self._load()

    async def _load(self) -> None:
        now = self._clock.monotonic_ms()
        self._seen = {name: self._seen.get(name, now) for name in await self._notifications()}
        found: set[str] = set()
        for entity_type in ENTITY_TYPES:
            found |= await self._load_below(entity_type)
        for entity_path in self._entities.keys() - found:
            self._take(entity_path, {})
        self._read = found

    async def run(self) -> None:
        """Follow changes until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if self._outdated:
                    await self._load()
                    self._outdated = False
                await self.follow()
            except StoreClosed:
                return
            except StoreError as error:
                # A new session wakes this again; a change that could not be read is named by its notification still.
                logger.warning("Changes of configurations can't be followed at the moment: %s", error)

    async def follow(self) -> None:
        """Take over what the notifications name that have not been read yet, and remove the expired ones."""
        now = self._clock.monotonic_ms()
        names = await self._notifications()
        for name in names:
            if name in self._seen:
                continue
            try:
                data, _ = await self._store.get(f"{paths.CONFIG_CHANGES}/{name}")
                entity_path = paths.decode_config_change(data)
            except NoNode:
                continue
            except ValueError as error:
                logger.error("Notification %s of a changed configuration is not understood: %s", name, error)
            else:
                await self.refresh(entity_path)
            self._seen[name] = now
        present = set(names)
        for name, seen in list(self._seen.items()):
            if name not in present:
                del self._seen[name]
            elif now - seen > NOTIFICATION_EXPIRY_MS:
                await self._remove(f"{paths.CONFIG_CHANGES}/{name}")

    async def refresh(self, entity_path: str) -> Mapping[str, str]:
        """Read one entity again; listeners hear of it if it has changed."""
        try:
            data, _ = await self._store.get(paths.config_by_entity_path(entity_path))
        except NoNode:
            data = b""
        self._take(entity_path, _decode(entity_path, data))
        return self.get(entity_path)

    async def learn(self, entity_paths: list[str]) -> None:
        """Read several entities, with one round of requests to the store."""
        found = await self._store.get_many([paths.config_by_entity_path(entity_path) for entity_path in entity_paths])
        for entity_path, node in zip(entity_paths, found, strict=True):
            self._take(entity_path, {} if node is None else _decode(entity_path, node[0]))

    def remember(self, entity_path: str, settings: Mapping[str, str]) -> None:
        """Know at once what this broker has just written itself."""
        self._take(entity_path, dict(settings))

    def forget(self, entity_path: str) -> None:
        """Drop an entity that is gone, e.g. a deleted topic."""
        self._entities.pop(entity_path, None)
        self._read.discard(entity_path)

    # -- writing

    async def write(self, entity_path: str, settings: Mapping[str, str]) -> None:
        """Replace all settings of an entity and notify every broker. Known here when this returns. Raises KafkaError
        NOT_CONTROLLER while there is no controller, StoreError."""
        await self.change(entity_path, lambda _: settings)

    async def change(self, entity_path: str, decide: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Make of an entity's settings, as the store has them now, what `decide` says, and notify every broker: so that
        changes by way of several brokers add up. Raises what `decide` raises, and as `write`.

        Kafka's shape: multi of [check that /controller is still the one just read, set], a plain create where there is
        no node yet, then the notification.
        """
        path = paths.config_by_entity_path(entity_path)
        while True:
            try:
                held, stat = await self._store.get(path)
            except NoNode:
                held, stat = b"", None
            settings = decide(_decode(entity_path, held))
            controller = await self._store.exists(paths.CONTROLLER)
            if controller is None:
                raise KafkaError(Errors.NOT_CONTROLLER, "There is no controller at the moment.")
            data = paths.encode_config(settings)
            try:
                if stat is None:
                    await self._store.create(path, data, parents=True)
                else:
                    check = Check(paths.CONTROLLER, controller.version)
                    await self._store.multi([check, SetData(path, data, stat.version)])
                break
            except (BadVersion, NoNode, NodeExists):
                continue  # another broker was faster, or there is another controller
        self._take(entity_path, dict(settings))
        await self._store.create(paths.config_change(), paths.encode_config_change(entity_path), sequential=True)

    # -- inside

    def _take(self, entity_path: str, settings: dict[str, str]) -> None:
        self._read.add(entity_path)
        if self._entities.get(entity_path, _EMPTY) == settings:
            return
        if settings:
            self._entities[entity_path] = settings
        else:
            self._entities.pop(entity_path, None)
        entity_type, _, name = entity_path.partition("/")
        for listener in self._listeners.get(entity_type, ()):
            listener(name, settings)

    async def _notifications(self) -> list[str]:
        """Names of the notifications in order; a watch tells `run` of the next."""
        names = await self._store.children(paths.CONFIG_CHANGES, self._on_watch)
        return sorted(name for name in names if name.startswith(paths.CONFIG_CHANGE_PREFIX))

    def _on_watch(self, event: WatchEvent) -> None:
        self._changed.set()

    def _on_session(self, state: SessionState) -> None:
        """A new session reads everything anew: it may have been away for longer than notifications stay."""
        if state == "expired":
            self._outdated = True
        elif state == "connected":
            self._changed.set()

    async def _load_below(self, parent: str) -> set[str]:
        """Reads all entities there; returns their paths."""
        try:
            names = await self._store.children(paths.config_by_entity_path(parent))
        except NoNode:
            return set()
        entity_paths = [f"{parent}/{name}" for name in names]
        below: set[str] = set()
        found = await self._store.get_many([paths.config_by_entity_path(entity_path) for entity_path in entity_paths])
        for entity_path, node in zip(entity_paths, found, strict=True):
            if node is None:
                continue
            self._take(entity_path, _decode(entity_path, node[0]))
            # Below a user stand its client ids: users/<user>/clients/<client>.
            if node[1].num_children:
                below |= await self._load_below(f"{entity_path}/clients")
        return below.union(entity_paths)

    async def _remove(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except NoNode:
            pass


def _decode(entity_path: str, data: bytes) -> dict[str, str]:
    try:
        return paths.decode_config(data)
    except ValueError as error:
        logger.error("The configuration of %s is not understood and left out: %s", entity_path, error)
        return {}
