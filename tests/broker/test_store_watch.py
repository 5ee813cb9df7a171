"""Requests that need the metadata store while it is out of reach: they must not pile up."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from pybroker.broker import store_watch
from pybroker.broker.kafka_apis import HANDLERS, ApiMetrics, ServedVersion
from pybroker.broker.store_watch import PATIENCE_MS, StoreWatch
from pybroker.protocol.clock import ManualClock
from pybroker.protocol.codec import encode_bytes
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pybroker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.room import open_room

BOUND = [key for key, handler in HANDLERS.items() if handler.by_controller]


def test_it_is_away_after_a_while_and_until_it_is_back() -> None:
    clock = ManualClock()
    watch = StoreWatch(clock)
    assert not watch.is_away
    watch.session_changed("suspended")
    clock.advance(PATIENCE_MS)
    assert not watch.is_away
    watch.session_changed("expired")  # which is told when the connection is back: the same outage
    clock.advance(1)
    assert watch.is_away
    watch.session_changed("connected")
    assert not watch.is_away


@pytest.mark.parametrize("key", BOUND)
def test_each_has_an_answer_for_it(key: int) -> None:
    handler = HANDLERS[key]
    name = "".join(word.capitalize() for word in handler.module.split("_"))
    messages = importlib.import_module(f"pybroker.protocol.messages.{handler.module}")
    request: Any = getattr(messages, f"{name}Request")()
    for version in range(handler.lowest, handler.highest + 1):
        served = ServedVersion(handler, key, version, ApiMetrics())
        response = served.error_response(request, KafkaError(Errors.NOT_CONTROLLER))
        assert response is not None
        encode_bytes(response, version)


async def test_a_request_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "PATIENCE_MS", -1)
    async with open_room(tmp_path) as room:
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=5000
        )
        room.services.store_watch.session_changed("suspended")
        (refused,) = (await room.call(request, 7)).topics
        assert refused.error_code == Errors.NOT_CONTROLLER
        (refused,) = (await room.call(set_retention(), 1)).responses
        assert refused.error_code == Errors.REQUEST_TIMED_OUT
        room.services.store_watch.session_changed("connected")
        (made,) = (await room.call(request, 7)).topics
        assert made.error_code == Errors.NONE
        (changed,) = (await room.call(set_retention(), 1)).responses
        assert changed.error_code == Errors.NONE
        room.services.store_watch.session_changed("suspended")
        (checked,) = (await room.call(set_retention(validate_only=True), 1)).responses
        assert checked.error_code == Errors.NONE


def set_retention(validate_only: bool = False) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="retention.ms", config_operation=0, value="5")
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
