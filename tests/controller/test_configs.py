from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.controller import paths
from pybroker.controller.configs import NOTIFICATION_EXPIRY_MS, ConfigRepository
from pybroker.controller.embedded_store import EmbeddedStore
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.errors import Errors, KafkaError


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / "metadata")
    for path in paths.PERSISTENT:
        await opened.create(path, parents=True)
    await opened.create(paths.CONTROLLER, b"{}", ephemeral=True)
    yield opened
    await opened.close()


async def loaded(store: EmbeddedStore, clock: ManualClock | None = None) -> ConfigRepository:
    repository = ConfigRepository(store, clock or ManualClock())
    await repository.load()
    return repository


async def test_everything_is_read_at_start(store: EmbeddedStore) -> None:
    await store.create("/config/topics/t", paths.encode_config({"retention.ms": "5"}))
    await store.create("/config/topics/u", paths.encode_config({}))
    await store.create("/config/topics/broken", b"not json")
    await store.create("/config/brokers/1", paths.encode_config({"log.cleaner.threads": "2"}))
    await store.create("/config/brokers/<default>", paths.encode_config({"log.cleaner.threads": "3"}))
    await store.create("/config/users/a/clients/c", paths.encode_config({"producer_byte_rate": "5"}), parents=True)
    repository = await loaded(store)
    assert repository.topic("t") == {"retention.ms": "5"}
    assert repository.topic("u") == repository.topic("broken") == repository.topic("nope") == {}
    assert repository.broker(1) == {"log.cleaner.threads": "2"}
    assert repository.broker_defaults() == {"log.cleaner.threads": "3"}
    assert repository.get("users/a/clients/c") == {"producer_byte_rate": "5"}


async def test_a_write_looks_as_kafkas_does(store: EmbeddedStore) -> None:
    repository = await loaded(store)
    await repository.write("brokers/<default>", {"log.cleaner.threads": "1"})
    await repository.write("topics/t-b", {})
    await repository.write("topics/t-b", {"cleanup.policy": "delete,compact", "min.insync.replicas": "1"})
    data, stat = await store.get("/config/topics/t-b")
    assert data == b'{"version":1,"config":{"cleanup.policy":"delete,compact","min.insync.replicas":"1"}}'
    assert stat.version == 1
    changes = await store.children("/config/changes")
    assert changes == [f"config_change_{n:010}" for n in range(3)]
    assert (await store.get(f"/config/changes/{changes[0]}"))[0] == b'{"version":2,"entity_path":"brokers/<default>"}'
    assert repository.topic("t-b") == json.loads(data)["config"]


async def test_changes_by_several_brokers_add_up(store: EmbeddedStore) -> None:
    """Each changes what the store has, not what it remembers of it; one that is overtaken begins anew."""
    one, two = await loaded(store), await loaded(store)
    await one.change("topics/t", lambda before: {**before, "a": "1"})
    await two.change("topics/t", lambda before: {**before, "b": "2"})
    assert two.topic("t") == {"a": "1", "b": "2"}
    await asyncio.gather(
        *(each.change("topics/t", lambda before, n=n: {**before, f"c{n}": ""}) for n, each in enumerate([one, two] * 5))
    )
    data, _ = await store.get("/config/topics/t")
    assert paths.decode_config(data).keys() == {"a", "b", *(f"c{n}" for n in range(10))}

    def refuse(before: Mapping[str, str]) -> Mapping[str, str]:
        raise KafkaError(Errors.INVALID_CONFIG)

    with pytest.raises(KafkaError):
        await one.change("topics/t", refuse)
    assert (await store.get("/config/topics/t"))[0] == data


async def test_without_a_controller_nothing_is_written(store: EmbeddedStore) -> None:
    repository = await loaded(store)
    await store.delete(paths.CONTROLLER)
    with pytest.raises(KafkaError) as refused:
        await repository.write("topics/t", {"retention.ms": "5"})
    assert refused.value.code == Errors.NOT_CONTROLLER
    assert await store.exists("/config/topics/t") is None


async def test_another_brokers_change_is_followed(store: EmbeddedStore) -> None:
    writer, reader = await loaded(store), await loaded(store)
    heard: list[tuple[str, Mapping[str, str]]] = []
    arrived = asyncio.Event()

    def listen(name: str, settings: Mapping[str, str]) -> None:
        heard.append((name, settings))
        arrived.set()

    reader.on_change("topics", listen)
    running = asyncio.ensure_future(reader.run())
    try:
        for value in ("5", "6"):
            arrived.clear()
            await writer.write("topics/t", {"retention.ms": value})
            await asyncio.wait_for(arrived.wait(), 10)
        assert heard == [("t", {"retention.ms": "5"}), ("t", {"retention.ms": "6"})]
        assert reader.topic("t") == {"retention.ms": "6"}
    finally:
        running.cancel()


async def test_a_listener_hears_of_a_change_once(store: EmbeddedStore) -> None:
    repository = await loaded(store)
    heard: list[str] = []
    repository.on_change("topics", lambda name, settings: heard.append(name))
    await repository.write("topics/t", {"retention.ms": "5"})
    await repository.follow()
    await repository.write("topics/t", {"retention.ms": "5"})
    await repository.follow()
    assert heard == ["t"]


async def test_notifications_expire(store: EmbeddedStore) -> None:
    clock = ManualClock()
    repository = await loaded(store, clock)
    await repository.write("topics/old", {"retention.ms": "5"})
    await repository.follow()
    clock.advance(NOTIFICATION_EXPIRY_MS + 1)
    await repository.write("topics/new", {"retention.ms": "5"})
    await repository.follow()
    assert await store.children("/config/changes") == ["config_change_0000000001"]
    await repository.follow()
    assert list(repository._seen) == ["config_change_0000000001"]


async def test_notifications_that_make_no_sense_are_passed_over(store: EmbeddedStore) -> None:
    repository = await loaded(store)
    await store.create(paths.config_change(), b"nonsense", sequential=True)
    await store.create("/config/topics/t", paths.encode_config({"retention.ms": "9"}))
    old_style = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    await store.create(paths.config_change(), old_style, sequential=True)
    await repository.follow()
    assert repository.topic("t") == {"retention.ms": "9"}


async def test_remember_and_forget(store: EmbeddedStore) -> None:
    repository = await loaded(store)
    repository.remember("topics/t", {"retention.ms": "5"})
    assert repository.topic("t") == {"retention.ms": "5"}
    repository.forget("topics/t")
    assert repository.topic("t") == {}
