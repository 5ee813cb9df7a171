"""What the handlers of administrative requests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors, KafkaError

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)
"""Kafka's text for INVALID_REQUEST where it has no better one."""


def require_controller(context: RequestContext) -> None:
    """Raises KafkaError NOT_CONTROLLER on a broker that is not the controller."""
    if not context.services.controller.is_active:
        raise KafkaError(Errors.NOT_CONTROLLER, "This is not the correct controller for this cluster.")


async def wait_for_leaders(context: RequestContext, partitions: dict[str, int], timeout_ms: int) -> set[str]:
    """Wait until all partitions 0..n-1 of these topics have leaders; returns the topics where some still have none."""
    cache = context.services.metadata_cache

    def leaderless(topic: str) -> bool:
        states = cache.partitions(topic)
        return len(states) < partitions[topic] or any(state.leader < 0 for state in states.values())

    open_topics = set(partitions)

    def done() -> bool:
        # Topics that are ready are not looked at again, so that a thousand of them cost a thousand looks.
        open_topics.difference_update([topic for topic in open_topics if not leaderless(topic)])
        return not open_topics

    await cache.wait_until(partitions, done, timeout_ms / 1000)
    return open_topics
