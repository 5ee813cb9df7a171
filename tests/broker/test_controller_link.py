"""What a broker asks of another one that is the controller, where that one hangs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.broker import leaving
from pybroker.broker.controller_link import ControllerLink
from pybroker.broker.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.protocol.messages.alter_partition import AlterPartitionRequest
from pybroker.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def live(controller: int, **ports: int) -> UpdateMetadataRequest:
    brokers = [
        UpdateMetadataBroker(
            id=int(name[1:]), endpoints=[UpdateMetadataEndpoint(port=port, host="127.0.0.1", listener="PLAINTEXT")]
        )
        for name, port in ports.items()
    ]
    return UpdateMetadataRequest(controller_id=controller, controller_epoch=controller, live_brokers=brokers)


async def test_a_controller_that_is_gone_is_not_waited_for() -> None:
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cache, loop, controller = MetadataCache("cluster", 1), asyncio.get_running_loop(), SimpleNamespace(broker_epoch=5)
    store: Any = None
    link = ControllerLink(1, BrokerConfig({}), store, cache, loop, lambda: controller)  # type: ignore[arg-type, return-value]
    cache.update(live(2, b1=1, b2=port, b3=2))
    asking = asyncio.ensure_future(link.alter_partitions(AlterPartitionRequest(broker_id=1)))
    await asyncio.wait([asking], timeout=0.1)
    cache.update(live(2, b1=1, b2=port))
    await asyncio.wait([asking], timeout=0.1)
    assert not asking.done()
    cache.update(live(3, b1=1, b3=2))
    with pytest.raises(OSError, match="closed"):
        await asyncio.wait_for(asking, 5)
    server.close()


async def test_a_broker_that_leaves_asks_the_next_controller() -> None:
    controller: Any = SimpleNamespace(controller_id=2)

    async def never() -> None:
        await asyncio.Event().wait()

    async def soon() -> int:
        await asyncio.sleep(0)
        return 7

    assert await leaving._while_in_office(soon(), controller) == 7
    asking = asyncio.ensure_future(leaving._while_in_office(never(), controller))
    await asyncio.sleep(3 * leaving.LOOK_SECONDS)
    controller.controller_id = -1  # nobody just now
    await asyncio.sleep(3 * leaving.LOOK_SECONDS)
    assert not asking.done()
    controller.controller_id = 3
    with pytest.raises(ConnectionError, match="another controller"):
        await asyncio.wait_for(asking, 5)


async def test_a_broker_that_leaves_asks_whom_the_store_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What UpdateMetadata said last may be of the one that hangs."""
    cache, controller = MetadataCache("cluster", 1), SimpleNamespace(is_active=False, controller_id=3, broker_epoch=5)
    cache.update(live(2, b1=1, b2=2222, b3=3333))
    asked: list[int] = []

    def connect(endpoint: Any, *_: object) -> Any:
        asked.append(endpoint.port)
        raise ConnectionRefusedError

    monkeypatch.setattr(leaving, "connect", connect)
    with pytest.raises(ConnectionRefusedError):
        await leaving._ask(1, BrokerConfig({}), cache, controller)  # type: ignore[arg-type]
    controller.controller_id = -1
    with pytest.raises(ConnectionError, match="no controller"):
        await leaving._ask(1, BrokerConfig({}), cache, controller)  # type: ignore[arg-type]
    assert asked == [3333]
