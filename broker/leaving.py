"""The end of a broker in a cluster: before it stops, it has the controller hand its leadership over.

It tries controlled.shutdown.max.retries times, with pauses of controlled.shutdown.retry.backoff.ms, and then stops
whatever remains, as Apache Kafka does (KafkaServer.controlledShutdown). The broker serves on meanwhile: that is how it
hears of the new leaders. Other than Kafka it does not wait for what can't come: where no other broker lives it stops at
once, and a controller that is elected meanwhile is asked at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from pybroker.broker.controller_link import connect, controller_endpoint
from pybroker.broker.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.controller.controller import Controller
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from pybroker.replication.manager import ReplicaManager

logger = logging.getLogger(__name__)

# How long it waits to hear from the controller of the new leaders: till then it sends clients nowhere.
HEARING_SECONDS = 2.0
LOOK_SECONDS = 0.02  # between looks at who is the controller
T = TypeVar("T")
VERSION = 3  # since release 2.4, whatever inter.broker.protocol.version says


async def hand_over(
    broker_id: int, config: BrokerConfig, cache: MetadataCache, replicas: ReplicaManager, controller: Controller
) -> bool:
    """Whether all that others can lead is led by them now, and this broker can tell its clients so."""
    attempts = config.int("controlled.shutdown.max.retries")
    if not set(cache.brokers) - {broker_id}:
        logger.info("No other broker is there to lead what this one leads")
        return False
    replicas.leaving = True
    for attempt in range(attempts):
        asked = controller.controller_id
        try:
            remaining = await _ask(broker_id, config, cache, controller)
        except (OSError, KafkaError) as error:
            logger.warning("The controller did not take over this broker's leadership: %s", error)
        else:
            if not remaining:
                await _heard(replicas)
                logger.info("Other brokers lead what this one led")
                return True
            logger.warning("Nobody else can lead %s", ", ".join(remaining[:10]))
        if attempt + 1 < attempts:
            await _pause(config.int("controlled.shutdown.retry.backoff.ms") / 1000, controller, asked)
    logger.warning("The broker stops without having handed everything over")
    return False


async def _heard(replicas: ReplicaManager) -> None:
    """Returns when the controller has told this broker of the new leaders."""
    loop = asyncio.get_running_loop()
    end = loop.time() + HEARING_SECONDS
    while loop.time() < end and any(each.leader is not None and each.leader.followers for each in replicas):
        await asyncio.sleep(LOOK_SECONDS)


async def _pause(seconds: float, controller: Controller, asked: int) -> None:
    """Between attempts; ends early when another controller is elected than the one that was asked."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end and controller.controller_id in (asked, -1):
        await asyncio.sleep(LOOK_SECONDS)


async def _while_in_office(answer: Coroutine[Any, Any, T], controller: Controller) -> T:
    """The answer of the controller that is in office now. ConnectionError where another one is elected meanwhile: the
    one that was asked may hang."""
    asked, waiting = controller.controller_id, asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait([waiting], timeout=LOOK_SECONDS))[0]:
            if controller.controller_id not in (asked, -1):
                raise ConnectionError("another controller was elected")
        return waiting.result()
    finally:
        waiting.cancel()
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _ask(broker_id: int, config: BrokerConfig, cache: MetadataCache, controller: Controller) -> list[str]:
    """What remains. Raises OSError and KafkaError."""
    if controller.is_active:
        return [str(at) for at in await controller.announce_shutdown(broker_id, controller.broker_epoch)]
    # The one that the store names: what UpdateMetadata said last may be of a controller that hangs.
    endpoint = controller_endpoint(config, cache, controller.controller_id)
    connection = connect(endpoint, broker_id, config, asyncio.get_running_loop())
    try:
        request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=controller.broker_epoch)
        response: ControlledShutdownResponse = await _while_in_office(connection.send(request, VERSION), controller)
    finally:
        connection.close()
    if response.error_code:
        raise KafkaError(Errors(response.error_code))
    return [f"{each.topic_name}-{each.partition_index}" for each in response.remaining_partitions]
